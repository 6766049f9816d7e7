package deploy

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Given the agents beside KubeVirt, then they are not privileged, reach no libvirt, and write
// nothing but Events: a bug there can cost KubeVirt's VMs no more than a late launcher.
func TestBesideKubeVirtTheAgentHasLittlePrivilege(t *testing.T) {
	const dir = "deploy/beside-kubevirt/agents"
	_, pod, c := daemonSet(t, dir)
	o := options(t, c)
	security := c.SecurityContext
	if !o.BesideKubeVirt || security.Privileged != nil || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(security.Capabilities.Add, []corev1.Capability{"KILL", "DAC_OVERRIDE"}) {
		t.Errorf("%+v, %+v", o, security)
	}
	for _, v := range pod.Volumes {
		if path := v.HostPath.Path; !slices.Contains([]string{"/run/dbus", o.StateDir, o.KubeletDir + "/pods"}, path) {
			t.Errorf("it has %s of the node", path)
		}
	}
	for _, rule := range object[rbacv1.ClusterRole](t, render(t, dir), "ClusterRole").Rules {
		writes := slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) })
		if events := slices.Equal(rule.Resources, []string{"events"}) && slices.Equal(rule.Verbs, []string{"create"}); writes && !events {
			t.Errorf("it may %v %v", rule.Verbs, rule.Resources)
		}
	}
}
