package drain

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// node is the drain of one node. Goroutines other than the loop use only its channels and
// constant fields.
type node struct {
	*command

	name  string
	uid   types.UID
	store cache.Cache
	// targets is the cache of newTargets.
	targets cache.Cache
	plan    *drain.Plan

	changed     chan struct{}            // an object in the cache has changed
	results     chan func(now time.Time) // called by the loop
	slots       chan struct{}            // semaphore of eviction requests
	calls       sync.WaitGroup           // goroutines: requests and watches
	chosen      bool                     // begin has chosen the pods to drain
	skipped     []drain.Pod              // pods with the label PolicyLabel=Skip, for Why
	seenPods    map[types.UID]bool       // pods that were chosen or not
	controllers map[string]bool          // UIDs of the controllers of drained pods
	reading     int                      // late pods whose volumes are being read, or will be again
	unread      map[types.UID]int        // how often that has failed
	handles     map[string]string        // PersistentVolume by its name in Node.status
	since       time.Time                // when the node was cordoned, by the API server's clock
}

// drain drains a cordoned node.
func (c *command) drain(ctx context.Context, from *corev1.Node) error {
	n := &node{
		command: c, name: from.Name, uid: from.UID, plan: drain.NewPlan(c.Limits),
		changed: make(chan struct{}, 1), results: make(chan func(time.Time)), slots: make(chan struct{}, maxConcurrent),
		seenPods: map[types.UID]bool{}, unread: map[types.UID]int{}, controllers: map[string]bool{}, handles: map[string]string{},
	}
	for i := range from.ManagedFields {
		if t := from.ManagedFields[i].Time; t != nil && t.After(n.since) && from.Spec.Unschedulable {
			n.since = t.Time
		}
	}
	if c.Timeout > 0 {
		bound, cancel := context.WithTimeoutCause(ctx, c.Timeout, ErrTimeout)
		defer cancel()
		ctx = bound
	}
	ctx, stop := context.WithCancel(ctx)
	defer n.calls.Wait()
	defer stop()
	var err error
	if n.store, err = c.newStore(from.Name); err != nil {
		return fmt.Errorf("node %s: %w", from.Name, err)
	}
	if n.targets, err = c.newTargets(); err != nil {
		return fmt.Errorf("node %s: %w", from.Name, err)
	}
	for _, store := range []cache.Cache{n.store, n.targets} {
		n.calls.Go(func() { _ = store.Start(ctx) }) // it fails only when started twice
	}

	err = n.begin(ctx)
	switch {
	case err != nil:
	case c.why:
		return n.explain(ctx)
	case c.DryRun == dryRunNone:
		err = n.loop(ctx)
	default:
		err = n.dryRun(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // the cancellation is the cause of err
	}
	if c.why {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return n.finish(err)
}

// begin chooses the pods to drain. Like kubectl drain it fails if a pod needs another
// flag to be drained.
func (n *node) begin(ctx context.Context) error {
	if err := n.startWatches(ctx); err != nil {
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
		} else if p.Policy == drain.Skip {
			n.skipped = append(n.skipped, *p)
		}
	}
	n.chosen = true
	if len(refusals) > 0 {
		return refusalError(refusals)
	}
	if n.why { // nothing is evicted
		return nil
	}
	for _, text := range sorted(warnings) {
		n.show.warn(n.name, text)
	}
	return nil
}

// add adds a pod to the plan.
func (n *node) add(p *drain.Pod) {
	if grace := n.Drain.Grace(p); grace != nil {
		p.OverridesGrace, p.Grace = true, time.Duration(*grace)*time.Second
	}
	n.plan.Add(p)
	for _, v := range p.Volumes {
		if v.Handle != "" {
			n.handles[v.Handle] = v.Name
		}
	}
	if p.Controller != "" {
		n.controllers[p.Controller] = true
	}
}

// selected returns the pods that --pod-selector selects and that are new since the last
// call.
func (n *node) selected(pods []corev1.Pod) (some []corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		if n.podSelector.Matches(labels.Set(p.Labels)) && !n.seenPods[p.UID] {
			some = append(some, *p)
		}
		n.seenPods[p.UID] = true
	}
	return some
}

// loop carries out the plan until it is done.
func (n *node) loop(ctx context.Context) error {
	for {
		f, pods, err := n.facts(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		again := time.Now().Add(time.Second)
		if err == nil { // otherwise it retries after a second
			n.addLate(ctx, n.selected(pods))
			var evict []drain.Pod
			evict, again = n.plan.Next(f)
			for _, p := range evict {
				n.startEviction(ctx, p)
			}
			n.show.pods(n.name, n.plan.Status())
			if n.plan.Done() && n.reading == 0 {
				return nil
			}
		}
		if err := n.wait(ctx, again); err != nil {
			return err
		}
	}
}

// wait returns after a change or a result, or at the time again. Zero means no timer.
func (n *node) wait(ctx context.Context, again time.Time) error {
	var timeout <-chan time.Time
	if !again.IsZero() {
		t := time.NewTimer(time.Until(again))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout:
	case <-n.changed:
	case apply := <-n.results:
		apply(time.Now())
	}
	return nil
}

// addLate adds pods that were seen after begin: they may have been bound to the node
// before it was cordoned. A pod that was created since and whose controller has a drained
// pod tolerates the cordon. It is only reported, because it would be replaced here again.
func (n *node) addLate(ctx context.Context, pods []corev1.Pod) {
	for i := range pods {
		p := pods[i]
		d := podOf(&p)
		if _, is := ofDaemonSet(&p); is || d.Mirror {
			continue
		}
		if n.controllers[d.Controller] && p.CreationTimestamp.After(n.since) {
			n.show.warn(n.name, fmt.Sprintf("pod %s/%s came back to this node and stays: %s tolerates the cordon", p.Namespace, p.Name, d.Owner))
			continue
		}
		n.reading++
		n.calls.Go(func() {
			all, err := n.describe(ctx, []corev1.Pod{p})
			n.deliver(ctx, func(now time.Time) {
				if err != nil {
					n.show.warn(n.name, fmt.Sprintf("pod %s/%s came later: %v", p.Namespace, p.Name, err))
					n.readAgain(ctx, p.UID)
					return
				}
				n.reading--
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

// readAgain lets addLate see a pod once more, after a while: until then it counts as being read.
func (n *node) readAgain(ctx context.Context, pod types.UID) {
	n.unread[pod]++
	wait := time.After(drain.Backoff(n.unread[pod]))
	n.calls.Go(func() {
		select {
		case <-wait:
			n.deliver(ctx, func(time.Time) { n.reading--; delete(n.seenPods, pod) })
		case <-ctx.Done():
		}
	})
}

// dryRun prints the evictions; with --dry-run=server it requests each as a dry run.
func (n *node) dryRun(ctx context.Context) error {
	var failed int
	for _, s := range n.plan.Status() {
		name := s.Pod.Namespace + "/" + s.Pod.Name
		switch {
		case s.Pod.Policy == drain.WaitCompleted:
			n.show.dryRun(n.name, &s, "waiting for pod "+name+" to end (dry run)")
		case n.DryRun == dryRunClient:
			n.show.dryRun(n.name, &s, "evicting pod "+name+" (dry run)")
		default:
			a := n.classify(ctx, &s.Pod, n.evict(ctx, &s.Pod))
			if a.ByBudget && n.Limits.Deletes(&s.Pod) {
				a.Verdict = drain.Blocked
				a.Reason += fmt.Sprintf("; it is deleted after %d refused evictions", n.Limits.DeleteAfter)
			}
			if a.Verdict == drain.Failed || a.Verdict == drain.Retry {
				failed++
			}
			s.Reason = a.Reason
			n.show.dryRun(n.name, &s, fmt.Sprintf("evicting pod %s (server dry run): %s%s", name, a.Verdict, withColon(a.Reason)))
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d pods cannot be evicted", failed)
	}
	return nil
}
