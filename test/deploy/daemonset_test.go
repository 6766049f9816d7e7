package deploy

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/internal/node"
)

func daemonSet(t *testing.T, dir string) (appsv1.DaemonSet, corev1.PodSpec, corev1.Container) {
	t.Helper()
	ds := object[appsv1.DaemonSet](t, render(t, dir), "DaemonSet")
	pod := ds.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want one", len(pod.Containers))
	}
	return ds, pod, pod.Containers[0]
}

// options parses the shipped flags with the agent's own parser.
func options(t *testing.T, c corev1.Container) *node.Options {
	t.Helper()
	var args []string
	for _, arg := range c.Args {
		args = append(args, strings.ReplaceAll(arg, "$(HOST_IP)", "192.0.2.1"))
	}
	for _, e := range c.Env {
		if e.Name == "NODE_NAME" && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			t.Setenv("NODE_NAME", "a-node")
		}
	}
	o, err := node.Parse(args, io.Discard)
	if err != nil {
		t.Fatalf("the agent refuses the arguments of its DaemonSet: %v", err)
	}
	if o.NodeName != "a-node" || o.Standalone || o.DryRun {
		t.Errorf("node %q, standalone %v, dry run %v", o.NodeName, o.Standalone, o.DryRun)
	}
	return o
}

func TestEverythingHasTheNamesOfTheContract(t *testing.T) {
	all := render(t, "deploy/daemonset")
	ds := object[appsv1.DaemonSet](t, all, "DaemonSet")
	sa := object[corev1.ServiceAccount](t, all, "ServiceAccount")
	ns := object[corev1.Namespace](t, all, "Namespace")
	got := []string{ns.Name, ns.Labels["pod-security.kubernetes.io/enforce"], ds.Namespace, ds.Name, sa.Namespace, sa.Name,
		ds.Spec.Template.Spec.ServiceAccountName, ds.Spec.Template.Spec.Containers[0].Image}
	want := []string{"vmgrace-system", "privileged", "vmgrace-system", "node-agent", "vmgrace-system", "node-agent",
		"node-agent", "docker.io/vmgrace/node-agent:" + release(t)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for kind, labels := range map[string]map[string]string{"DaemonSet": ds.Labels, "pod": ds.Spec.Template.Labels, "ServiceAccount": sa.Labels, "Namespace": ns.Labels} {
		if labels["app.kubernetes.io/name"] != "node-agent" || labels["app.kubernetes.io/part-of"] != "vmgrace" {
			t.Errorf("labels of the %s: %v", kind, labels)
		}
	}
}

func TestTheAgentRunsEverywhereAndIsTheLastToGo(t *testing.T) {
	ds, pod, c := daemonSet(t, "deploy/daemonset")
	switch update := ds.Spec.UpdateStrategy.RollingUpdate; {
	case update.MaxUnavailable.String() != "1", update.MaxSurge.String() != "0":
		t.Errorf("rolling update %+v: one agent at a time, and never two on a node", update)
	case pod.PriorityClassName != "system-node-critical":
		t.Errorf("priority class %q", pod.PriorityClassName)
	case !slices.Contains(pod.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists}):
		t.Errorf("tolerations %v: some taints keep it away", pod.Tolerations)
	case *pod.TerminationGracePeriodSeconds < 2, *pod.TerminationGracePeriodSeconds > 10:
		t.Errorf("grace period %d s: it needs one", *pod.TerminationGracePeriodSeconds)
	case c.ImagePullPolicy != corev1.PullIfNotPresent:
		t.Errorf("image pull policy %s", c.ImagePullPolicy)
	case !*c.SecurityContext.ReadOnlyRootFilesystem:
		t.Error("its root can be written")
	case c.Resources.Requests.Memory().IsZero(), c.Resources.Requests.Cpu().IsZero():
		t.Errorf("requests %v", c.Resources.Requests)
	case !c.Resources.Limits.Cpu().IsZero():
		t.Error("a CPU limit: being throttled at a deadline makes it late")
	}
}

// Given the DaemonSet's mounts, then each path is the same in the container and on the
// node, because the agent's messages name the node's paths.
func TestTheAgentFindsWhatItReads(t *testing.T) {
	_, pod, c := daemonSet(t, "deploy/daemonset")
	o := options(t, c)
	want := map[string]bool{ // whether the mount is writable
		"/run/libvirt": false, "/var/log/libvirt": false, o.StateDir: true, o.KubeletDir + "/pods": true,
		"/run/dbus": false,
	}
	got := map[string]bool{}
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 || pod.Volumes[at].HostPath == nil || pod.Volumes[at].HostPath.Path != m.MountPath {
			t.Fatalf("volume %s at %s is not that path of the node", m.Name, m.MountPath)
		}
		if kind := pod.Volumes[at].HostPath.Type; kind == nil || *kind == corev1.HostPathUnset {
			t.Errorf("%s has no type: a path that is missing would be made as kubelet likes", m.MountPath)
		}
		got[m.MountPath] = !m.ReadOnly
		propagates := m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer
		if propagates != (m.MountPath == o.KubeletDir+"/pods") {
			t.Errorf("mount propagation of %s: %v", m.MountPath, m.MountPropagation)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestProbesReachTheAgent(t *testing.T) {
	for dir, want := range map[string]string{"deploy/daemonset": "127.0.0.1:9469", "deploy/monitoring": "[192.0.2.1]:9469"} {
		_, pod, c := daemonSet(t, dir)
		if o := options(t, c); o.MetricsAddress != want || !pod.HostNetwork {
			t.Errorf("%s: metrics on %s, want %s; host network: %v", dir, o.MetricsAddress, want, pod.HostNetwork)
		}
		for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			host := "127.0.0.1"
			if dir == "deploy/monitoring" {
				host = "" // empty means the pod's address, which is the node's
			}
			if g := probe.HTTPGet; g == nil || g.Path != path || g.Host != host || g.Port.String() != "9469" {
				t.Errorf("%s: probe %+v, want %s at %q", dir, g, path, host)
			}
		}
	}
}

func TestEveryPrivilegeHasItsReason(t *testing.T) {
	lines := strings.Split(read(t, "deploy/daemonset/daemonset.yaml"), "\n")
	privilege := regexp.MustCompile(`^ +(hostPID|hostNetwork|hostIPC|privileged|runAsUser|priorityClassName|imagePullPolicy|tolerations):`)
	volumes := slices.Index(lines, "      volumes:")
	found := 0
	for i, line := range lines {
		if !privilege.MatchString(line) && (volumes < 0 || i < volumes || !strings.HasPrefix(line, "        - name:")) {
			continue
		}
		found++
		if !strings.HasPrefix(strings.TrimSpace(lines[i-1]), "#") {
			t.Errorf("line %d has no reason above it: %s", i+1, line)
		}
	}
	if found < 11 {
		t.Errorf("only %d privileges and volumes found", found)
	}
}

// Given the rights in docs/kubernetes.md, then they are exactly those that the API server
// lists for the agent. Otherwise an administrator would approve other rights than the agent
// gets.
func TestTheDocumentedRightsAreTheRealOnes(t *testing.T) {
	api.Kubectl(t, "apply", "-k", root+"deploy/daemonset")
	agent := api.ServiceAccount(t, "vmgrace-system", "node-agent")
	words := func(s string) []string {
		var out []string
		for line := range strings.Lines(s) {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
		slices.Sort(out)
		return out
	}
	_, after, found := strings.Cut(read(t, "docs/kubernetes.md"), "auth can-i --list`:\n\n```\n")
	documented, _, closed := strings.Cut(after, "\n```")
	if !found || !closed {
		t.Fatal("docs/kubernetes.md does not have what the agent may do")
	}
	got := agent.Kubectl(t, "auth", "can-i", "--list")
	if diff := cmp.Diff(words(documented), words(got)); diff != "" {
		t.Errorf("docs/kubernetes.md is not what the API server says:\n%s\n%s", diff, got)
	}
}
