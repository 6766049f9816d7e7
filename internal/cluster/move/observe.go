package move

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Observer reads what the rules of package evacuation need of a VM.
type Observer struct {
	Cache    client.Reader
	Settings *settings.Live
	// Nodes means that nodes may be read. Otherwise each node counts as Ready, and it is
	// unknown whether it is schedulable.
	Nodes bool
}

// VM is a VM with what was read for it.
type VM struct {
	evacuation.Evacuee

	Node Node
	Pods []corev1.Pod // its launchers that have not ended
}

// Node is the state of a node that decisions depend on. Tainted is for its VM's launchers.
type Node struct{ Exists, Ready, Cordoned, Drained, Tainted bool }

// Schedulable reports whether VMs may be placed on the node, but for its taints.
func (n Node) Schedulable() bool { return n.Exists && !n.Cordoned && !n.Drained }

// StateOf returns the state of a node, but for Tainted.
func (o Observer) StateOf(node *corev1.Node) Node {
	return Node{
		Exists: true, Ready: index.Ready(node), Cordoned: node.Spec.Unschedulable,
		Drained: index.Drained(node, o.Settings.Get().DrainTaint),
	}
}

// Observe reads a VM's launchers, migrations and node from the cache.
func (o Observer) Observe(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (*VM, error) {
	launchers, err := index.Launchers(ctx, o.Cache, vmi)
	if err != nil {
		return nil, err
	}
	return o.observe(ctx, o.Cache, vmi, launchers)
}

// ObserveNow reads a VM with its launchers and node from the API server, and its migrations
// from the cache.
func (o Observer) ObserveNow(ctx context.Context, live client.Reader, vm client.ObjectKey) (*VM, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	if err := live.Get(ctx, vm, vmi); err != nil {
		return nil, fmt.Errorf("VMI: %w", err)
	}
	launchers, err := index.LaunchersNow(ctx, live, vmi)
	if err != nil {
		return nil, err
	}
	return o.observe(ctx, live, vmi, launchers)
}

func (o Observer) observe(ctx context.Context, nodes client.Reader, vmi *kubevirt.VirtualMachineInstance, launchers []corev1.Pod) (*VM, error) {
	migrations, err := index.Migrations(ctx, o.Cache, vmi)
	if err != nil {
		return nil, err
	}
	launchers = index.Unspent(launchers, migrations)
	v := &VM{Pods: launchers}
	if v.Node, err = o.node(ctx, nodes, vmi, launchers); err != nil {
		return nil, err
	}
	set := o.Settings.Get()
	strategy, _ := evacuation.StrategyOf(vmi, set.EvictionStrategy)
	v.Evacuee = evacuation.Evacuee{
		VMI: vmi, Strategy: strategy, NodeReady: v.Node.Ready, NodeDrained: v.Node.Drained,
		Launchers: len(launchers), Unschedulable: unschedulable(launchers), Migrations: migrations, Now: time.Now(),
		MaxAttempts: set.MaxAttempts, ShutdownAfter: set.ShutdownAfter,
		Held:                slices.ContainsFunc(launchers, func(p corev1.Pod) bool { return index.Held(&p, vmi) }),
		LauncherTerminating: slices.ContainsFunc(launchers, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }),
	}
	return v, nil
}

// node reads the state of a VM's node. Marks for its taints are removed with those.
func (o Observer) node(ctx context.Context, from client.Reader, vmi *kubevirt.VirtualMachineInstance, launchers []corev1.Pod) (Node, error) {
	if !o.Nodes {
		return Node{Ready: true}, nil
	}
	name := vmi.Node()
	if name == "" {
		return Node{}, nil
	}
	node := &corev1.Node{}
	switch err := from.Get(ctx, client.ObjectKey{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return Node{}, nil
	case err != nil:
		return Node{}, fmt.Errorf("node %s: %w", name, err)
	}
	state := o.StateOf(node)
	state.Tainted = evacuation.ExplanationOf(vmi).Cause != evacuation.CauseNodeTaint && index.Tainted(node, launchers)
	return state, nil
}

// unschedulable returns the scheduler's message about a launcher that fits on no node, or "".
func unschedulable(launchers []corev1.Pod) string {
	for i := range launchers {
		for _, c := range launchers[i].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && launchers[i].DeletionTimestamp == nil {
				return cmp.Or(c.Message, c.Reason, "it does not say why")
			}
		}
	}
	return ""
}
