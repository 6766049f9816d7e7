package deploy

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/internal/cluster"
)

func deployment(t *testing.T, dir string) (appsv1.Deployment, corev1.Container, *cluster.Options) {
	t.Helper()
	d := object[appsv1.Deployment](t, render(t, dir), "Deployment")
	c := d.Spec.Template.Spec.Containers[0]
	o, err := cluster.Parse(c.Args, io.Discard)
	if err != nil {
		t.Fatalf("cluster-controller refuses the arguments of its Deployment: %v", err)
	}
	return d, c, o
}

func TestTheControllerRunsTwiceAndWithoutPrivileges(t *testing.T) {
	d, c, o := deployment(t, "deploy/controller")
	pod := d.Spec.Template.Spec
	switch {
	case d.Namespace != "vmgrace-system", d.Name != "cluster-controller", pod.ServiceAccountName != "cluster-controller",
		c.Image != "docker.io/vmgrace/cluster-controller:"+release(t):
		t.Errorf("%s/%s as %s runs %s", d.Namespace, d.Name, pod.ServiceAccountName, c.Image)
	case *d.Spec.Replicas != 2, !o.LeaderElect, o.BesideKubeVirt, !slices.Equal(o.Controllers, []string{"*"}):
		t.Errorf("%d replicas, %+v", *d.Spec.Replicas, o)
	case d.Spec.Strategy.RollingUpdate.MaxUnavailable.String() != "0":
		t.Errorf("rolling update %+v: webhooks are without an answer meanwhile", d.Spec.Strategy.RollingUpdate)
	case len(pod.Volumes) != 0, pod.HostNetwork, pod.HostPID, !*pod.SecurityContext.RunAsNonRoot, *c.SecurityContext.AllowPrivilegeEscalation,
		!*c.SecurityContext.ReadOnlyRootFilesystem, !slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}):
		t.Errorf("privileges: %+v", pod)
	case c.Resources.Requests.Memory().IsZero(), c.Resources.Requests.Cpu().IsZero():
		t.Errorf("requests %v", c.Resources.Requests)
	}
}

// Given replicas that do not run. Then their budget holds up no drain.
func TestTheControllersBudgetKeepsOnlyWhatRuns(t *testing.T) {
	b := object[policyv1.PodDisruptionBudget](t, render(t, "deploy/controller"), "PodDisruptionBudget")
	if p := b.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != policyv1.AlwaysAllow || b.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%+v", b.Spec)
	}
}

func TestTheControllersPortsAreItsFlags(t *testing.T) {
	_, c, o := deployment(t, "deploy/controller")
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if ports["webhooks"] != int32(o.WebhookPort) || o.MetricsAddress != ":9470" || ports["metrics"] != 9470 || o.HealthAddress != ":9471" || ports["health"] != 9471 {
		t.Errorf("ports %v, flags %+v", ports, o)
	}
	for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port != intstr.FromString("health") {
			t.Errorf("%s: %+v", path, probe.HTTPGet)
		}
	}
	s := object[corev1.Service](t, render(t, "deploy/controller"), "Service")
	if s.Name != "vmgrace-cluster-controller" || s.Spec.Ports[0].Port != 443 || s.Spec.Ports[0].TargetPort != intstr.FromString("webhooks") {
		t.Errorf("Service %s: %+v", s.Name, s.Spec.Ports)
	}
}

func TestTheWebhooksStandInNobodysWay(t *testing.T) {
	all := render(t, "deploy/controller")
	v := object[admissionregistrationv1.ValidatingWebhookConfiguration](t, all, "ValidatingWebhookConfiguration").Webhooks[0]
	m := object[admissionregistrationv1.MutatingWebhookConfiguration](t, all, "MutatingWebhookConfiguration").Webhooks[0]
	if v.Name != "virt-launcher-eviction-interceptor.kubevirt.io" || *v.SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun || *v.TimeoutSeconds != 10 {
		t.Errorf("%+v", v)
	}
	if *v.FailurePolicy != admissionregistrationv1.Ignore || *m.FailurePolicy != admissionregistrationv1.Ignore {
		t.Errorf("without an answer: %s, %s", *v.FailurePolicy, *m.FailurePolicy)
	}
	for _, selector := range []string{v.NamespaceSelector.String(), m.NamespaceSelector.String()} {
		if !strings.Contains(selector, "vmgrace-system") || !strings.Contains(selector, "NotIn") {
			t.Errorf("it is asked for its own pods: %s", selector)
		}
	}
	if diff := cmp.Diff(map[string]string{"kubevirt.io": "virt-launcher"}, m.ObjectSelector.MatchLabels); diff != "" {
		t.Error(diff)
	}
}

// Given the controller's manifests, then each right has a comment with its reason above it.
// test/evictions checks that the controller uses each right.
func TestEveryRightOfTheControllerHasItsReason(t *testing.T) {
	for _, file := range []string{"deploy/controller/rbac.yaml", "deploy/beside-kubevirt/controller/kustomization.yaml"} {
		lines := strings.Split(read(t, file), "\n")
		found := 0
		for i, line := range lines {
			if strings.HasPrefix(strings.TrimSpace(line), "- apiGroups:") {
				found++
				if before := strings.TrimSpace(lines[i-1]); !strings.HasPrefix(before, "#") && !strings.HasPrefix(before, "verbs:") {
					t.Errorf("%s, line %d has no reason above it: %s", file, i+1, line)
				}
			}
		}
		if found < 3 {
			t.Errorf("%s: only %d rights found", file, found)
		}
	}
}

// Given a controller beside KubeVirt, then its rights let it write none of the objects that
// KubeVirt writes, except that it creates and deletes migrations, and its only webhook changes
// launcher pods that are created. Otherwise both would overwrite each other.
func TestBesideKubeVirtTheControllerMayWriteNothingOfKubeVirts(t *testing.T) {
	_, _, o := deployment(t, "deploy/beside-kubevirt/controller")
	all := render(t, "deploy/beside-kubevirt/controller")
	hold := object[admissionregistrationv1.MutatingWebhookConfiguration](t, all, "MutatingWebhookConfiguration").Webhooks
	if !o.BesideKubeVirt || strings.Contains(all, "kind: ValidatingWebhookConfiguration") || len(hold) != 1 || *hold[0].FailurePolicy != admissionregistrationv1.Ignore ||
		*hold[0].SideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun {
		t.Errorf("%+v, or webhooks: %+v", o, hold)
	}
	for _, rules := range [][]rbacv1.PolicyRule{object[rbacv1.ClusterRole](t, all, "ClusterRole").Rules, object[rbacv1.Role](t, all, "Role").Rules} {
		for _, r := range rules {
			for _, verb := range r.Verbs {
				writes := !slices.Contains([]string{"get", "list", "watch"}, verb)
				allowed := slices.ContainsFunc(r.Resources, func(of string) bool {
					return slices.Contains([]string{
						"leases create", "leases update", "events create", "events patch", "evacuationpolicies/status patch", "pods/eviction create",
						"virtualmachineinstancemigrations create", "virtualmachineinstancemigrations delete",
						"mutatingwebhookconfigurations patch", "secrets create", "secrets update",
					}, of+" "+verb)
				})
				if writes && !allowed {
					t.Errorf("it may %s %v", verb, r.Resources)
				}
			}
		}
	}
}
