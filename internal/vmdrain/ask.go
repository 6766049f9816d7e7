package vmdrain

import (
	"context"
	"errors"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
		reply := n.evict(ctx, &p)
		n.tell(ctx, func(now time.Time) { n.plan.Answer(p.UID, n.classify(ctx, &p, reply), now) })
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
func (n *node) evict(ctx context.Context, p *drain.Pod) *drain.Reply {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	opts := metav1.DeleteOptions{GracePeriodSeconds: n.Drain.Grace(p), Preconditions: &metav1.Preconditions{UID: new(types.UID(p.UID))}}
	var err error
	if n.DisableEviction {
		err = n.live.Delete(ctx, pod, &client.DeleteOptions{GracePeriodSeconds: opts.GracePeriodSeconds, Preconditions: opts.Preconditions})
	} else {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, DeleteOptions: &opts}
		err = n.live.SubResource("eviction").Create(ctx, pod, eviction)
	}
	return reply(err)
}

func reply(err error) *drain.Reply {
	if err == nil {
		return &drain.Reply{OK: true, Code: http.StatusOK}
	}
	r := &drain.Reply{Text: err.Error()}
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

// classify adds what the store says to a reply.
func (n *node) classify(ctx context.Context, p *drain.Pod, r *drain.Reply) drain.Answer {
	f, pods, err := n.facts(ctx)
	if err != nil {
		return drain.Classify(p, r, nil, nil)
	}
	var some []drain.Budget
	if all, err := listed(ctx, n, &policyv1.PodDisruptionBudgetList{}); err == nil {
		for i := range pods {
			if string(pods[i].UID) == p.UID {
				some = budgets(selecting(all.Items, &pods[i]))
			}
		}
	}
	return drain.Classify(p, r, some, f.Pods[p.UID].VM)
}
