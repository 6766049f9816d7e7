package vmdrain

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/vmgrace/vmgrace/pkg/drain"
)

// node is the drain of one node. Its loop owns all of it but the channels.
type node struct {
	*command

	name  string
	uid   types.UID
	store cache.Cache
	plan  *drain.Plan

	changed chan struct{}            // something in the store
	told    chan func(now time.Time) // answers
	slots   chan struct{}            // for requests
	calls   sync.WaitGroup           // requests under way, and the watches
	known   bool                     // which pods have to go
	met     map[types.UID]bool       // pods that were looked at
	away    map[string]bool          // controllers that had a pod here
	looking int                      // pods that came later, and are looked at
	handles map[string]string        // volumes by their name in a node's status
	since   time.Time                // the node was cordoned, by the API server's clock
}

// drain empties a node that is cordoned.
func (c *command) drain(ctx context.Context, of *corev1.Node) error {
	n := &node{
		command: c, name: of.Name, uid: of.UID, plan: drain.NewPlan(c.Reattach),
		changed: make(chan struct{}, 1), told: make(chan func(time.Time)), slots: make(chan struct{}, atOnce),
		met: map[types.UID]bool{}, away: map[string]bool{}, handles: map[string]string{},
	}
	for i := range of.ManagedFields {
		if t := of.ManagedFields[i].Time; t != nil && t.After(n.since) && of.Spec.Unschedulable {
			n.since = t.Time
		}
	}
	if c.Timeout > 0 {
		bound, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
		defer cancel()
		ctx = bound
	}
	ctx, stop := context.WithCancel(ctx)
	defer n.calls.Wait()
	defer stop()
	var err error
	if n.store, err = c.newStore(of.Name); err != nil {
		return fmt.Errorf("node %s: %w", of.Name, err)
	}
	n.calls.Go(func() { _ = n.store.Start(ctx) }) // its only error is to be started twice

	if err = n.begin(ctx); err == nil && c.DryRun == dryRunNone {
		err = n.loop(ctx)
	} else if err == nil {
		err = n.rehearse(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // what failed did so because of it
	}
	return n.finish(err)
}

// begin looks at the pods that are there, and refuses as kubectl drain does.
func (n *node) begin(ctx context.Context) error {
	if err := n.follow(ctx); err != nil {
		return err
	}
	_, pods, err := n.facts(ctx)
	if err != nil {
		return err
	}
	pods = n.selected(pods)
	all, err := n.describe(ctx, pods)
	if err != nil {
		return err
	}
	warnings, refusals := map[string][]string{}, map[string][]string{}
	for i := range all {
		p := &all[i]
		choice := drain.Choose(p, &n.Drain, time.Now())
		name := p.Namespace + "/" + p.Name
		if choice.Refusal != "" {
			refusals[choice.Refusal] = append(refusals[choice.Refusal], name)
		}
		if choice.Warning != "" {
			warnings[choice.Warning] = append(warnings[choice.Warning], name)
		}
		if choice.Drain {
			n.add(p)
		}
	}
	n.known = true
	if len(refusals) > 0 {
		return refused(refusals)
	}
	for _, text := range sorted(warnings) {
		n.show.warn(n.name, text)
	}
	return nil
}

// add gives the plan a pod that has to go.
func (n *node) add(p *drain.Pod) {
	p.OverridesGrace = n.Drain.Grace(p) != nil
	n.plan.Add(p)
	for _, v := range p.Volumes {
		if v.Handle != "" {
			n.handles[v.Handle] = v.Name
		}
	}
	if p.Controller != "" {
		n.away[p.Controller] = true
	}
}

// selected are pods that nobody has looked at, and that --pod-selector selects.
func (n *node) selected(pods []corev1.Pod) (some []corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		if n.podSelector.Matches(labels.Set(p.Labels)) && !n.met[p.UID] {
			some = append(some, *p)
		}
		n.met[p.UID] = true
	}
	return some
}

// loop carries the plan out until nothing is left to wait for.
func (n *node) loop(ctx context.Context) error {
	for {
		f, pods, err := n.facts(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		again := time.Now().Add(time.Second)
		if err == nil { // else it is asked for again: an error is no answer
			n.late(ctx, n.selected(pods))
			var evict []drain.Pod
			evict, again = n.plan.Next(f)
			for _, p := range evict {
				n.ask(ctx, p)
			}
			n.show.pods(n.name, n.plan.Status())
			if n.plan.Done() && n.looking == 0 {
				return nil
			}
		}
		if err := n.wait(ctx, again); err != nil {
			return err
		}
	}
}

// wait returns when there is something new, or at that time; zero is never.
func (n *node) wait(ctx context.Context, again time.Time) error {
	var alarm <-chan time.Time
	if !again.IsZero() {
		t := time.NewTimer(time.Until(again))
		defer t.Stop()
		alarm = t.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-alarm:
	case <-n.changed:
	case what := <-n.told:
		what(time.Now())
	}
	return nil
}

// late has pods that came after the beginning looked at: those that were bound
// before the node was cordoned go too. One whose controller has had a pod here
// comes back whatever is done, and is only named.
func (n *node) late(ctx context.Context, pods []corev1.Pod) {
	for i := range pods {
		p := pods[i]
		d := known(&p)
		if _, is := ofDaemonSet(&p); is || d.Mirror {
			continue
		}
		if n.away[d.Controller] && p.CreationTimestamp.After(n.since) {
			n.show.warn(n.name, fmt.Sprintf("pod %s/%s came back to this node and stays: %s tolerates the cordon", p.Namespace, p.Name, d.Owner))
			continue
		}
		n.looking++
		n.calls.Go(func() {
			all, err := n.describe(ctx, []corev1.Pod{p})
			n.tell(ctx, func(now time.Time) {
				n.looking--
				if err != nil {
					delete(n.met, p.UID)
					n.show.warn(n.name, fmt.Sprintf("pod %s/%s came later: %v", p.Namespace, p.Name, err))
					return
				}
				choice := drain.Choose(&all[0], &n.Drain, now)
				if choice.Drain {
					n.add(&all[0])
				} else if choice.Refusal != "" {
					n.show.warn(n.name, fmt.Sprintf("pod %s/%s came later and stays: %s", p.Namespace, p.Name, choice.Refusal))
				}
			})
		})
	}
}

// rehearse says what would go; with --dry-run=server it asks for each.
func (n *node) rehearse(ctx context.Context) error {
	var failed int
	for _, s := range n.plan.Status() {
		name := s.Pod.Namespace + "/" + s.Pod.Name
		switch {
		case s.Pod.Policy == drain.WaitCompleted:
			n.show.rehearsal(n.name, &s, "waiting for pod "+name+" to end (dry run)")
		case n.DryRun == dryRunClient:
			n.show.rehearsal(n.name, &s, "evicting pod "+name+" (dry run)")
		default:
			a := n.classify(ctx, &s.Pod, n.evict(ctx, &s.Pod))
			if a.Verdict == drain.Failed || a.Verdict == drain.Retry {
				failed++
			}
			s.Reason = a.Reason
			n.show.rehearsal(n.name, &s, fmt.Sprintf("evicting pod %s (server dry run): %s%s", name, a.Verdict, because(a.Reason)))
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d pods cannot be evicted", failed)
	}
	return nil
}
