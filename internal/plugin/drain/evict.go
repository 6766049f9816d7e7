package drain

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// startEviction evicts a pod in a goroutine, which sends the answer to the loop.
func (n *node) startEviction(ctx context.Context, p drain.Pod) {
	n.calls.Go(func() {
		select {
		case n.slots <- struct{}{}:
			defer func() { <-n.slots }()
		case <-ctx.Done():
			return
		}
		err := n.evict(ctx, &p)
		n.deliver(ctx, func(now time.Time) { n.plan.Answer(p.UID, n.classify(ctx, &p, err), now) })
	})
}

// deliver makes the loop call apply: only the loop may use the plan.
func (n *node) deliver(ctx context.Context, apply func(now time.Time)) {
	select {
	case n.results <- apply:
	case <-ctx.Done():
	}
}

// evict sends one eviction request. With --disable-eviction, or if the plan says so, it
// sends a deletion. Its precondition is the UID: another pod of the same name is not
// evicted.
func (n *node) evict(ctx context.Context, p *drain.Pod) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	opts := metav1.DeleteOptions{GracePeriodSeconds: n.Drain.Grace(p), Preconditions: &metav1.Preconditions{UID: new(types.UID(p.UID))}}
	if n.DisableEviction || p.Delete {
		return n.live.Delete(ctx, pod, &client.DeleteOptions{GracePeriodSeconds: opts.GracePeriodSeconds, Preconditions: opts.Preconditions})
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, DeleteOptions: &opts}
	return n.live.SubResource("eviction").Create(ctx, pod, eviction)
}

// response converts an error of evict.
func response(err error) *drain.Response {
	r := &drain.Response{Text: err.Error()}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		s := status.Status()
		r.Code = int(s.Code)
		if s.Details != nil {
			for _, c := range s.Details.Causes {
				r.Causes = append(r.Causes, string(c.Type))
			}
		}
	}
	return r
}

// classify interprets the result of evict, with the pod's budgets and VM from the cache.
func (n *node) classify(ctx context.Context, p *drain.Pod, err error) drain.Answer {
	if err == nil {
		return drain.Answer{Verdict: drain.Accepted}
	}
	pod := &corev1.Pod{}
	if n.store.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: p.Name}, pod) != nil || string(pod.UID) != p.UID {
		return drain.Classify(p, response(err), nil, nil)
	}
	// If the cache cannot list budgets or VMs, the reason is less specific.
	all, _ := cachedList(ctx, n, &policyv1.PodDisruptionBudgetList{})
	vms, _ := n.vms(ctx)
	vm := vmOf(vms, pod)
	a := drain.Classify(p, response(err), budgets(budgetsSelecting(all.Items, pod), time.Now()), vm)
	if a.Verdict == drain.Moving && n.DryRun != dryRunNone && (vm == nil || !vm.Marked && !vm.Moved) {
		a.Reason = "its VM would be moved"
	}
	return a
}
