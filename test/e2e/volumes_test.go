package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// csi starts a mock CSI driver on both nodes, and the external-attacher.
func (w *world) csi() {
	w.Helper()
	mock, err := cluster.CSI("mock-csi")
	if err != nil {
		w.Fatal(err)
	}
	w.afterwards("delete", "csidriver/"+cluster.CSIDriver, "--ignore-not-found")
	w.KubectlApply(w, `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: `+cluster.CSIDriver+`}
spec: {attachRequired: true, podInfoOnMount: false, fsGroupPolicy: None}
`)
	for _, n := range w.Nodes {
		w.csiNode(n, mock)
	}
	started, err := w.StartAttacher(w.TempDir())
	for _, p := range started {
		w.Cleanup(func() {
			p.Kill()
			if w.Failed() {
				w.Logf("a process of the attacher's said\n%s", p.Log())
			}
		})
	}
	if err != nil {
		w.Fatal(err)
	}
	w.step("a CSI driver on both nodes, and its external-attacher")
}

// csiNode starts the driver on a node and waits until kubelet has registered it.
func (w *world) csiNode(n *cluster.Node, program string) {
	w.Helper()
	const dir = "/var/lib/kubelet/plugins/" + cluster.CSIDriver
	text, err := os.Open(program)
	if err != nil {
		w.Fatal(err)
	}
	defer text.Close()
	start := fmt.Sprintf(`mkdir -p %[1]s /var/lib/kubelet/plugins_registry && rm -f %[1]s/* && cat >%[1]s/mock-csi && chmod 755 %[1]s/mock-csi
setsid %[1]s/mock-csi %[1]s/csi.sock %[2]s %[4]s %[3]s /var/lib/kubelet/plugins_registry >%[1]s/log 2>&1 </dev/null &
echo $! >%[1]s/pid`, dir, cluster.CSIDriver, n.Name, cluster.CSISlowly)
	w.restore(func(ctx context.Context) error {
		said, err := n.TryRun(ctx, nil, fmt.Sprintf("kill $(cat %[1]s/pid); rm -f /var/lib/kubelet/plugins_registry/%[2]s-reg.sock; cat %[1]s/log; rm -r %[1]s", dir, cluster.CSIDriver))
		if w.Failed() {
			w.Logf("mock-csi on %s said\n%s", n.Name, said)
		}
		return err
	})
	if _, err := n.TryRun(w.Context(), text, start); err != nil {
		w.Fatal(err)
	}
	node.Eventually(w, soon, func() bool {
		return strings.Contains(w.find(objects.Query{Kind: "csinode", Name: n.Name, Path: "{.spec.drivers[*].name}"}), cluster.CSIDriver)
	}, "kubelet of %s does not tell of the CSI driver", n.Name)
}

// volume creates a volume of the driver and a claim of the same name, which Kubernetes
// binds to each other.
func (w *world) volume(name, mode string) string {
	w.Helper()
	w.afterwards("delete", "pv/"+name, "--ignore-not-found", "--wait=false")
	w.afterwards("delete", "-n", namespace, "pvc/"+name, "--ignore-not-found", "--wait=false")
	w.KubectlApply(w, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  accessModes: [%[3]s]
  capacity: {storage: 1Gi}
  claimRef: {namespace: %[2]s, name: %[1]s}
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: %[4]s, volumeHandle: %[1]s}
---
`, name, namespace, mode, cluster.CSIDriver)+claim(name, mode, name))
	return name
}

// claim returns a claim to a volume. If volume is "", nobody binds the claim.
func claim(name, mode, volume string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec: {accessModes: [%s], storageClassName: "", volumeName: %q, resources: {requests: {storage: 1Gi}}}
`, name, namespace, mode, volume)
}

// podSpec returns the spec of a pod that does nothing and mounts these claims. If on is "",
// the scheduler chooses the node.
func podSpec(on, class string, claims ...string) string {
	var mounts, volumes []string
	for _, c := range claims {
		mounts = append(mounts, "{name: "+c+", mountPath: /"+c+"}")
		volumes = append(volumes, "{name: "+c+", persistentVolumeClaim: {claimName: "+c+"}}")
	}
	return fmt.Sprintf(`{nodeName: %q, priorityClassName: %q, terminationGracePeriodSeconds: 1, automountServiceAccountToken: false,
    securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}},
    containers: [{name: c, image: "docker.io/vmgrace/launcher-shim:v0.1.0", args: [--namespace=none, --name=other, --launcher-dir=/none],
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}, volumeMounts: [%s]}],
    volumes: [%s]}
`, on, class, strings.Join(mounts, ", "), strings.Join(volumes, ", "))
}

// stateful creates a StatefulSet of one pod, <name>-0.
func (w *world) stateful(name, class string, claims ...string) {
	w.Helper()
	w.afterwards("delete", "-n", namespace, "statefulset/"+name, "--ignore-not-found", "--cascade=foreground", "--timeout=60s")
	w.KubectlApply(w, fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  serviceName: %[1]s
  selector: {matchLabels: {set: %[1]s}}
  template:
    metadata: {labels: {set: %[1]s}}
    spec: %[3]s`, name, namespace, podSpec("", class, claims...)))
}

// runs waits until a pod runs on a node.
func (w *world) runs(pod string, on *cluster.Node) {
	w.Helper()
	node.Eventually(w, 2*soon, func() bool {
		return w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: pod, Path: "{.status.phase} {.spec.nodeName}"}) == "Running "+on.Name
	}, "%s does not run on %s", pod, on.Name)
}

// attachedTo returns the driver's volumes that are attached to a node, as the node's status
// or the VolumeAttachments say.
func (w *world) attachedTo(n *cluster.Node) (names []string) {
	w.Helper()
	status := w.find(objects.Query{Kind: "node", Name: n.Name, Path: "{.status.volumesAttached[*].name}"})
	for _, name := range strings.Fields(status) {
		if _, handle, ours := strings.Cut(name, cluster.CSIDriver+"^"); ours {
			names = append(names, handle)
		}
	}
	attachments := w.find(objects.Query{Kind: "volumeattachment",
		Path: `{range .items[?(@.spec.nodeName=="` + n.Name + `")]}{.spec.attacher} {.spec.source.persistentVolumeName}{"\n"}{end}`})
	for line := range strings.Lines(attachments) {
		if volume, ours := strings.CutPrefix(strings.TrimSpace(line), cluster.CSIDriver+" "); ours && !slices.Contains(names, volume) {
			names = append(names, volume)
		}
	}
	slices.Sort(names)
	return names
}

// Given two pods with volumes, where all but the CSI driver is real: Kubernetes'
// controllers, the external-attacher, the scheduler and both kubelets. When the node is
// drained, then each pod is evicted only when the volumes of the one before it are attached
// elsewhere. Otherwise a user's pods would wait without their volumes.
func TestADrainWaitsForEachPodsVolumes(t *testing.T) {
	w := given(t)
	w.csi()
	w.priorityClass("vmgrace-volumes")
	// Given two pods on a node, each with a volume of its own, both with a shared one,
	slowly, quick, both := w.volume("slow", "ReadWriteOnce"), w.volume("quick", "ReadWriteOnce"), w.volume("both", "ReadWriteMany")
	w.afterwards("uncordon", w.a.Name)
	w.afterwards("uncordon", w.b.Name)
	w.Kubectl(t, "cordon", w.b.Name)
	w.stateful("z-first", "vmgrace-volumes", slowly, both)
	w.stateful("a-second", "", quick, both)
	// one pod whose claim is never bound, and an attached volume that no pod uses.
	w.afterwards("delete", "-n", namespace, "pvc/unbound", "--ignore-not-found", "--wait=false")
	w.afterwards("delete", "-n", namespace, "pod/third", "--ignore-not-found", "--wait=false")
	w.KubectlApply(w, claim("unbound", "ReadWriteOnce", "")+fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: third, namespace: %s}
spec: %s`, namespace, podSpec(w.a.Name, "", "unbound")))
	w.afterwards("delete", "volumeattachment/foreign", "--ignore-not-found", "--wait=false")
	w.KubectlApply(w, `
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: foreign}
spec: {attacher: other.csi, nodeName: `+w.a.Name+`, source: {persistentVolumeName: foreign}}
`)
	for _, pod := range []string{"z-first-0", "a-second-0"} {
		w.runs(pod, w.a)
	}
	if got := w.attachedTo(w.a); !slices.Equal(got, []string{both, quick, slowly}) {
		t.Errorf("attached to %s are %v", w.a.Name, got)
	}
	w.step("two pods run with their volumes")

	// When their node is drained
	w.Kubectl(t, "uncordon", w.b.Name)
	begin := time.Now()
	said := w.vmdrain(w.a, func() {
		gone := w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: "a-second-0", Path: "{.metadata.deletionTimestamp}{.spec.nodeName}"}) != w.a.Name
		if here, there := w.attachedTo(w.a), w.attachedTo(w.b); gone && (slices.Contains(here, slowly) || !slices.Contains(there, slowly)) {
			t.Errorf("the second pod goes, and %v are attached to %s, %v to %s", here, w.a.Name, there, w.b.Name)
		}
	})
	w.step("drained in %.1f s", time.Since(begin).Seconds())

	// Then each was evicted when the volumes of the one before it were attached elsewhere,
	at := func(pod, state string) int {
		i := slices.Index(said, podState{Pod: pod, State: state})
		if i < 0 {
			t.Errorf("it does not say of %s: %s", pod, state)
		}
		return i
	}
	for _, states := range [][2]string{{"Evicting", "Detaching"}, {"Detaching", "Drained"}} {
		if at("z-first-0", states[0]) > at("z-first-0", states[1]) {
			t.Errorf("the first pod: %s after %s", states[0], states[1])
		}
	}
	if at("a-second-0", "Evicting") < at("z-first-0", "Drained") {
		t.Error("the second pod is evicted before the first is drained")
	}
	at("third", "Drained")
	// and both pods run on the other node under the same names.
	for _, pod := range []string{"z-first-0", "a-second-0"} {
		w.runs(pod, w.b)
	}
	if here, there := w.attachedTo(w.a), w.attachedTo(w.b); len(here) != 0 || !slices.Equal(there, []string{both, quick, slowly}) {
		t.Errorf("%v are attached to %s, %v to %s", here, w.a.Name, there, w.b.Name)
	}
}

func TestADrainNamesTheVolumeThatDoesNotLetGo(t *testing.T) {
	w := given(t)
	w.csi()
	stuck := w.volume("stuck", "ReadWriteOnce")
	w.afterwards("uncordon", w.a.Name)
	w.afterwards("uncordon", w.b.Name)
	w.Kubectl(t, "cordon", w.b.Name)
	w.stateful("pod", "", stuck)
	w.runs("pod-0", w.a)
	w.restore(func(ctx context.Context) error { // as an operator releases a volume by hand
		all, err := w.TryKubectl(ctx, "", "get", "volumeattachments", "-o", `jsonpath={.items[?(@.spec.attacher=="`+cluster.CSIDriver+`")].metadata.name}`)
		for _, attachment := range strings.Fields(all) {
			err = errors.Join(err, w.kubectl(ctx, "patch", "volumeattachment", attachment, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`))
		}
		return err
	})
	w.step("a pod runs with its volume")

	code, said := w.runVMDrain(w.a, func() {}, "--timeout=10s")
	if code != 1 || !strings.Contains(said, "--timeout is over; pods left: 1") || !strings.Contains(said, "pod-0: Detaching: attached here: "+namespace+"/"+stuck) {
		t.Errorf("exit status %d:\n%s", code, said)
	}
}
