package estimate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// look is what the cache has of all nodes. Its objects belong to the cache and must not be
// modified.
type look struct {
	evacuation.Settings

	takes    time.Duration // by a migration
	measured bool
	nodes    map[string]*node
}

// node is a node with its VMs, and their launcher pods in the same order.
type node struct {
	*corev1.Node // nil if there is none

	vms  []evacuation.AtRisk
	pods []*corev1.Pod
}

// open reports whether the node is Ready and schedulable. Its taints do not count: launcher
// pods may tolerate them.
func (n *node) open() bool { return n.Node != nil && index.Ready(n.Node) && !n.Spec.Unschedulable }

// look reads the cache, without copies.
func (r *reconciler) look(ctx context.Context, set evacuation.Settings) (*look, error) {
	l := &look{Settings: set, nodes: map[string]*node{}}
	var nodes corev1.NodeList
	if err := r.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	open := 0
	for i := range nodes.Items {
		n := &node{Node: &nodes.Items[i]}
		l.nodes[n.Name] = n
		if n.open() {
			open++
		}
	}
	launchers, err := r.launchers(ctx)
	if err != nil {
		return nil, err
	}
	var vmis kubevirt.VirtualMachineInstanceList
	if err := r.List(ctx, &vmis, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("VMIs: %w", err)
	}
	for i := range vmis.Items {
		v := &vmis.Items[i]
		if pod := launchers[launcher{string(v.UID), v.Node()}]; pod != nil && !ended(v) {
			l.add(v, pod, open)
		}
	}
	var migrations kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &migrations, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	l.takes, l.measured = evacuation.MigrationTime(migrations.Items)
	return l, nil
}

// launcher identifies the launcher pod of a VMI on a node.
type launcher struct{ uid, node string }

// launchers returns the launcher pods on nodes that have not ended.
func (r *reconciler) launchers(ctx context.Context) (map[launcher]*corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("launcher pods: %w", err)
	}
	all := make(map[launcher]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName != "" && !index.Ended(p) {
			all[launcher{p.Labels[kubevirt.CreatedByLabel], p.Spec.NodeName}] = p
		}
	}
	return all, nil
}

// add adds a VM to its node. open is the number of open nodes, with this one.
func (l *look) add(v *kubevirt.VirtualMachineInstance, pod *corev1.Pod, open int) {
	n := l.nodes[v.Node()]
	if n == nil {
		n = &node{}
		l.nodes[v.Node()] = n
	}
	if n.open() {
		open--
	}
	strategy, _ := evacuation.StrategyOf(v, l.EvictionStrategy)
	grace := int64(evacuation.DefaultGracePeriod / time.Second)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = *s
	}
	n.pods = append(n.pods, pod)
	n.vms = append(n.vms, evacuation.AtRisk{
		VMI: v, Strategy: strategy, NodeReady: n.Node != nil && index.Ready(n.Node), OtherNodes: open, GraceSeconds: grace,
		HoldFor: pod.Annotations[evacuation.HoldForAnnotation], Reserve: pod.Annotations[evacuation.ReserveAnnotation],
		Allowance: pod.Annotations[evacuation.AllowanceAnnotation],
	})
}
