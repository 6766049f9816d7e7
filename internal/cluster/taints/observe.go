package taints

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	replacement "github.com/vmgrace/vmgrace/internal/rules/taints"
)

// observed holds the inputs of replacement.Next, with the objects to act on. These belong
// to the cache and must not be modified.
type observed struct {
	replacement.World

	vmis map[string]*kubevirt.VirtualMachineInstance // by UID
	pods map[string]*corev1.Pod                      // launchers, by the VMI's UID
}

// readPolicy reads the policy, nil if there is none. The first time, it also restores the
// state from the policy's status.
func (r *reconciler) readPolicy(ctx context.Context) (*v1alpha1.EvacuationPolicy, error) {
	policy, err := index.Policy(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	if !r.restored {
		r.restored = true
		r.state = restoreState(policy)
	}
	var asked *v1alpha1.TaintReplacement
	if policy != nil {
		asked = policy.Spec.TaintReplacement
	}
	var invalid []string
	r.policy, invalid = replacement.PolicyOf(asked, r.policy)
	for _, why := range invalid {
		r.Log.Warn("EvacuationPolicy has what cannot be used", "why", why)
	}
	return policy, nil
}

// observe reads all nodes and VMs. It reads pods only of relevant VMs.
func (r *reconciler) observe(ctx context.Context) (*observed, error) {
	s := &observed{
		World: replacement.World{Now: time.Now(), Policy: r.policy, Nodes: map[string]replacement.Node{}},
		vmis:  map[string]*kubevirt.VirtualMachineInstance{}, pods: map[string]*corev1.Pod{},
	}
	taints := map[string][]corev1.Taint{}
	var nodes corev1.NodeList
	if err := r.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		taints[n.Name] = n.Spec.Taints
		s.Nodes[n.Name] = replacement.Node{Name: n.Name, Ready: index.Ready(n), Taints: taintsOf(n)}
	}
	var vmis kubevirt.VirtualMachineInstanceList
	if err := r.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("VMIs: %w", err)
	}
	used := map[string]bool{}
	for i := range vmis.Items {
		v := &vmis.Items[i]
		if v.Final() || v.DeletionTimestamp != nil || v.Node() == "" {
			continue
		}
		used[v.Node()] = true
		if !r.relevant(v, len(taints[v.Node()]) > 0) {
			continue
		}
		vm, pod, err := r.vm(ctx, v, taints[v.Node()])
		if err != nil {
			return nil, err
		}
		s.vmis[vm.UID], s.pods[vm.UID] = v, pod
		s.VMs = append(s.VMs, vm)
	}
	s.NodesWithVMs = len(used)
	return s, nil
}

// relevant reports whether a VM's node has a taint, or a mark, condition or state of one is
// left.
func (r *reconciler) relevant(v *kubevirt.VirtualMachineInstance, tainted bool) bool {
	_, known := r.state.VMs[string(v.UID)]
	return tainted || known || hasTaintsLeft(v)
}

// hasTaintsLeft reports whether a VM has a mark or a condition of a taint.
func hasTaintsLeft(v *kubevirt.VirtualMachineInstance) bool {
	return markedForTaint(v) || v.Condition(kubevirt.NodeTaintDetected) != nil || v.Condition(kubevirt.NodeTaintReplacing) != nil
}

// markedForTaint reports whether a VM is marked because of a taint.
func markedForTaint(v *kubevirt.VirtualMachineInstance) bool {
	return evacuation.ExplanationOf(v).Cause == evacuation.CauseNodeTaint
}

func taintsOf(n *corev1.Node) []replacement.Taint {
	all := make([]replacement.Taint, 0, len(n.Spec.Taints))
	for _, t := range n.Spec.Taints {
		is := replacement.Taint{Key: t.Key, Effect: string(t.Effect)}
		if t.TimeAdded != nil {
			is.Added = t.TimeAdded.Time
		}
		all = append(all, is)
	}
	return all
}

func (r *reconciler) vm(ctx context.Context, v *kubevirt.VirtualMachineInstance, taints []corev1.Taint) (replacement.VM, *corev1.Pod, error) {
	strategy, _ := evacuation.StrategyOf(v, r.Settings.Get().EvictionStrategy)
	vm := replacement.VM{
		Namespace: v.Namespace, Name: v.Name, UID: string(v.UID), Node: v.Node(), Strategy: strategy,
		Migratable: v.Migratable(), Tolerates: func(replacement.TaintID) bool { return false },
	}
	cause, moving, err := r.Mover.Moving(ctx, v)
	if err != nil {
		return vm, nil, err
	}
	// KubeVirt's mark has no cause: it is this controller's if it has asked for one.
	asked := cause == "" && !r.Conditions && !r.state.VMs[vm.UID].Started.IsZero()
	vm.Marked, vm.Ours = moving, moving && (asked || cause == evacuation.CauseNodeTaint)
	if c := v.Condition(kubevirt.NodeTaintReplacing); c != nil && c.Status == kubevirt.ConditionTrue {
		vm.Replacing = c.LastTransitionTime.Time
	}
	pods, err := index.Launchers(ctx, r.Client, v)
	if err != nil {
		return vm, nil, err
	}
	var launcher *corev1.Pod
	for i := range pods {
		if pods[i].Spec.NodeName == vm.Node && (launcher == nil || launcher.DeletionTimestamp != nil) {
			launcher = &pods[i]
		}
	}
	if launcher == nil {
		return vm, nil, nil
	}
	vm.Launcher, vm.Leaving = true, launcher.DeletionTimestamp != nil
	vm.Tolerates = func(id replacement.TaintID) bool { return tolerates(launcher, taints, id) }
	return vm, launcher, nil
}

// tolerates reports whether a pod tolerates a taint without a time limit.
func tolerates(pod *corev1.Pod, taints []corev1.Taint, id replacement.TaintID) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool {
		return t.Key == id.Key && string(t.Effect) == id.Effect && index.Tolerates(pod, &t)
	})
}
