package migration

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Annotations of a target pod that state what a migration has added to the copy of the source
// pod. The next copy is made without it.
const (
	// AddedSelectorAnnotation has the keys of the node selector that the migration's
	// addedNodeSelector has added, separated by commas.
	AddedSelectorAnnotation = "vmgrace.io/added-node-selector"
	// IncomingAnnotation has the UID of the migration whose guest the pod waits for, as an environment
	// variable of the containers that see the launcher directory: a launcher that starts QEMU itself
	// starts an empty one.
	IncomingAnnotation = "vmgrace.io/incoming"
	// HandedOverAnnotation has the UID of the migration that was handed to the agents: from then
	// on the guest may be in this pod, whatever became of the migration.
	HandedOverAnnotation = "vmgrace.io/handed-over"
)

// runTimeKeys are annotations and labels of a launcher pod that the cluster has written while
// it ran, as patterns of path.Match, and why the target pod must not have them. Those of networks
// are in networks.
var runTimeKeys = []struct{ key, why string }{
	{"vpc.amazonaws.com/*", "Amazon VPC: network interface and addresses of the source pod"},
	{"k8s.aliyun.com/pod-ips", "Terway: addresses of the source pod"},
	{"networking.gke.io/pod-ips", "GKE: addresses of the source pod"},
	{"tke.cloud.tencent.com/networks-status", "TKE: addresses of the source pod"},
	{"openstack.org/kuryr-*", "Kuryr: Neutron port of the source pod"},
	{"ambient.istio.io/redirection", "Istio: the traffic of the source pod is redirected"},
	{"kubernetes.io/config.*", "kubelet: identity of a static pod"},
	{"kubernetes.io/limit-ranger", "LimitRanger: what it has set"},
	{"kubernetes.io/psp", "PodSecurityPolicy: the policy that admitted the source pod"},
	{"openshift.io/scc", "OpenShift: the constraints that admitted the source pod"},
	{"security.openshift.io/validated-scc-subject-type", "OpenShift: who was validated by them"},
	{"topology.kubernetes.io/*", "Kubernetes: zone and region of the source node"},
	{"kubectl.kubernetes.io/last-applied-configuration", "kubectl: the target pod was not applied"},
	{kubevirt.EvictionInProgressAnnotation, "descheduler: the source pod is being evicted"},
	{kubevirt.MigrationJobLabel, "the migration of the source pod"},
}

// ofVMgrace begins all annotations of this project: they are computed anew.
const ofVMgrace = "vmgrace.io/"

// RunTimeKey returns why an annotation or label of a launcher pod is not copied to the target
// pod, or "".
func RunTimeKey(key string) string {
	for _, n := range networks {
		if matches(n.reports, key) {
			return n.of + ": what it reports of the source pod"
		}
	}
	for _, k := range runTimeKeys {
		if matches(k.key, key) {
			return k.why
		}
	}
	return ""
}

// matches reports whether one of the patterns, which blanks separate, is that of a key.
func matches(patterns, key string) bool {
	return slices.ContainsFunc(strings.Fields(patterns), func(pattern string) bool {
		is, _ := path.Match(pattern, key) // fails for none of ours
		return is
	})
}

// Copied returns the annotations or labels of a source pod that its target pod has, too.
func Copied(source map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range source {
		if RunTimeKey(key) == "" {
			kept[key] = value
		}
	}
	return kept
}

// CopiedAnnotations is Copied without this project's annotations, and without those that a program
// has added to the pod, unless they are known as a user's choice.
func CopiedAnnotations(source map[string]string, writers []Writer) map[string]string {
	kept := Copied(source)
	for key := range kept {
		choice := slices.ContainsFunc(networks, func(n network) bool { return matches(n.choices, key) })
		if strings.HasPrefix(key, ofVMgrace) || !choice && addedLater(key, writers) {
			delete(kept, key)
		}
	}
	return kept
}

// Selector returns the node selector of a target pod, and the keys that a migration has added
// to that of the source pod. As in KubeVirt a key of the source pod keeps its value: an
// addition can only restrict. former are the keys that an earlier migration has added, as in
// AddedSelectorAnnotation.
func Selector(source, added map[string]string, former string) (selector map[string]string, keys string) {
	selector = map[string]string{}
	for key, value := range source {
		if !slices.Contains(strings.Split(former, ","), key) {
			selector[key] = value
		}
	}
	var own []string
	for key, value := range added {
		if _, there := selector[key]; !there {
			selector[key] = value
			own = append(own, key)
		}
	}
	slices.Sort(own)
	return selector, strings.Join(own, ",")
}

// avoided is how many failed targets the next one avoids.
const avoided = 2

// Avoided returns the nodes at which migrations of a VMI have failed: the last two since its
// last success. The target of one that the source's agent did not begin is none of them.
func Avoided(all []kubevirt.VirtualMachineInstanceMigration, vmiUID string) []string {
	var ended []*kubevirt.VirtualMachineInstanceMigration
	for i := range all {
		if m := &all[i]; m.Final() && StateOf(m).VMIUID == vmiUID {
			ended = append(ended, m)
		}
	}
	slices.SortFunc(ended, func(a, b *kubevirt.VirtualMachineInstanceMigration) int {
		return cmp.Or(b.Reached(b.Status.Phase).Compare(a.Reached(a.Status.Phase)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	var nodes []string
	for _, m := range ended {
		node := StateOf(m).TargetNode
		switch {
		case m.Status.Phase == kubevirt.MigrationSucceeded, len(nodes) == avoided:
			return nodes
		case strings.HasPrefix(StateOf(m).FailureReason, sourceSilent(StateOf(m))):
		case node != "" && !slices.Contains(nodes, node):
			nodes = append(nodes, node)
		}
	}
	return nodes
}
