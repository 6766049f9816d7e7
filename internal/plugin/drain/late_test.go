package drain

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/internal/rules/drain"
)

// Given a pod that has come late and whose claim may not be read. When the drain goes on for two
// minutes, then it asks a few times, and it does not end without that pod.
func TestALatePodThatCannotBeReadIsAskedForWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		live := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
				asked++
				return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, key.Name, nil)
			},
		}).Build()
		n := &node{
			command: &command{Options: &Options{podSelector: labels.Everything()}, live: live, show: newPrinter(Output{Out: io.Discard, Err: io.Discard}, outputText)},
			plan:    drain.NewPlan(drain.Limits{}), changed: make(chan struct{}), results: make(chan func(time.Time)),
			seenPods: map[types.UID]bool{}, unread: map[types.UID]int{},
		}
		late := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "late", UID: "late"}}
		late.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		for ctx.Err() == nil && asked < 100 {
			n.addLate(ctx, n.selected([]corev1.Pod{late}))
			if n.reading == 0 {
				t.Error("the drain would end without it")
			}
			_ = n.wait(ctx, time.Time{})
		}
		cancel()
		n.calls.Wait()
		if asked < 3 || asked > 9 {
			t.Errorf("it was asked for %d times in two minutes", asked)
		}
	})
}
