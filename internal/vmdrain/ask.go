package vmdrain

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

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/drain"
)

// ask evicts a pod, and hands the answer to the loop.
func (n *node) ask(ctx context.Context, p drain.Pod) {
	n.calls.Go(func() {
		select {
		case n.slots <- struct{}{}:
			defer func() { <-n.slots }()
		case <-ctx.Done():
			return
		}
		err := n.evict(ctx, &p)
		n.tell(ctx, func(now time.Time) { n.plan.Answer(p.UID, n.classify(ctx, &p, err), now) })
	})
}

// tell hands something to the loop, which owns the plan.
func (n *node) tell(ctx context.Context, what func(now time.Time)) {
	select {
	case n.told <- what:
	case <-ctx.Done():
	}
}

// evict asks for this pod, not for another of the same name.
func (n *node) evict(ctx context.Context, p *drain.Pod) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	opts := metav1.DeleteOptions{GracePeriodSeconds: n.Drain.Grace(p), Preconditions: &metav1.Preconditions{UID: new(types.UID(p.UID))}}
	if n.DisableEviction {
		return n.live.Delete(ctx, pod, &client.DeleteOptions{GracePeriodSeconds: opts.GracePeriodSeconds, Preconditions: opts.Preconditions})
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, DeleteOptions: &opts}
	return n.live.SubResource("eviction").Create(ctx, pod, eviction)
}

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

// classify says what the outcome of evict means, given the pod's budgets and its VM.
func (n *node) classify(ctx context.Context, p *drain.Pod, err error) drain.Answer {
	if err == nil {
		return drain.Answer{Verdict: drain.Accepted}
	}
	pod := &corev1.Pod{}
	if n.store.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: p.Name}, pod) != nil || string(pod.UID) != p.UID {
		return drain.Classify(p, response(err), nil, nil)
	}
	// After an error of the cache the answer names no budget or VM.
	all, _ := listed(ctx, n, &policyv1.PodDisruptionBudgetList{})
	vms, _ := n.vms(ctx)
	return drain.Classify(p, response(err), budgets(selecting(all.Items, pod)), vms[pod.Labels[kubevirt.CreatedByLabel]])
}
