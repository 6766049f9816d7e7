package drain

import (
	"context"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/rest"

	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// Why prints what keeps a node from being empty: each pod that an eviction would not end at
// once, with the reason. It asks by evictions without effect, as --dry-run=server does, and
// changes nothing.
func Why(ctx context.Context, cfg *rest.Config, out Output, format, name string) error {
	o := &Options{Nodes: []string{name}, DryRun: dryRunServer, why: true}
	o.Drain = drain.Options{Force: true, IgnoreDaemonSets: true, DeleteEmptyDir: true, GraceSeconds: -1}
	if err := o.check(); err != nil {
		return err
	}
	show := newPrinter(Output{Out: onlyWriter{out.Out}, Err: out.Err}, format) // lines, also on a terminal
	c, err := newCommand(o, cfg, show)
	if err != nil {
		return err
	}
	nodes, err := c.nodes(ctx)
	if err == nil {
		err = c.drain(ctx, &nodes[0])
	}
	return Interrupted(ctx, err)
}

// explain prints the pods that keep the node from being empty, and how many there are.
func (n *node) explain(ctx context.Context) error {
	f, _, err := n.facts(ctx)
	if err != nil {
		return err
	}
	var kept []drain.Status
	all := n.plan.Status()
	for i := range all {
		s := all[i]
		n.explainPod(ctx, &s, f.Pods[s.Pod.UID].VM)
		if s.State != "" {
			kept = append(kept, s)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for i := range n.skipped {
		all = append(all, drain.Status{})
		kept = append(kept, drain.Status{Pod: n.skipped[i], State: drain.StateBlocked, Reason: "drains leave it: its label is " + drain.PolicyLabel + "=" + string(drain.Skip), Percent: -1})
	}
	text := fmt.Sprintf("is kept by %d of %d pods", len(kept), len(all))
	switch {
	case len(all) == 0:
		text = "is empty, but for pods of DaemonSets and static pods"
	case len(kept) == 0:
		text = fmt.Sprintf("is kept by no pod: evictions would end all %d", len(all))
	}
	n.show.pods(n.name, kept)
	n.show.node(n.name, "why", text)
	return nil
}

// explainPod sets the state of a pod and its reason. The state is empty if an eviction would
// end the pod.
func (n *node) explainPod(ctx context.Context, s *drain.Status, vm *drain.VM) {
	s.State = ""
	switch {
	case s.Pod.Ended:
		return
	case s.Pod.Policy == drain.WaitCompleted:
		s.State, s.Reason = drain.StateCompleting, "drains wait for its end: its label is "+drain.PolicyLabel+"="+string(drain.WaitCompleted)
		return
	}
	a := n.classify(ctx, &s.Pod, n.evict(ctx, &s.Pod))
	s.Reason = a.Reason
	switch a.Verdict {
	case drain.Moving:
		s.State = drain.StateMoving
		if vm != nil && vm.Progress != "" {
			s.Reason, s.Percent = vm.Progress, vm.Percent
		}
	case drain.Failed:
		s.State = drain.StateFailed
	case drain.Blocked, drain.Retry:
		s.State = drain.StateBlocked
	default:
		if !s.Pod.DeletedAt.IsZero() {
			s.State, s.Reason = drain.StateTerminating, "it has until "+s.Pod.DeletedAt.UTC().Format(time.RFC3339)
		}
	}
}

// onlyWriter hides that a file is a terminal.
type onlyWriter struct{ io.Writer }
