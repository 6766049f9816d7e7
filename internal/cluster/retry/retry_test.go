package retry

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

var (
	refusal = apierrors.NewInvalid(schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachineInstanceMigration"}, "m", nil)
	behind  = apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachineinstances"}, "vm", nil)
)

// rig is a controller's queue in synctest's virtual time.
type rig struct {
	*Failures
	log   bytes.Buffer
	tries int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := kubevirt.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &rig{}
	r.Failures = New(slog.New(slog.NewTextHandler(&r.log, nil)), events.NewFakeRecorder(4096),
		fake.NewClientBuilder().WithScheme(scheme).Build(), func() client.Object { return &kubevirt.VirtualMachineInstance{} })
	return r
}

// fails reconciles n objects that fail with err for as long as d.
func (r *rig) fails(n int, d time.Duration, err error) {
	failing := r.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		r.tries++
		return reconcile.Result{}, err
	}))
	due, end := map[reconcile.Request]time.Time{}, time.Now().Add(d)
	for i := range n {
		due[reconcile.Request{NamespacedName: types.NamespacedName{Name: fmt.Sprint("vm-", i)}}] = time.Now()
	}
	for time.Now().Before(end) {
		for of, at := range due {
			if !at.After(time.Now()) {
				_, _ = failing.Reconcile(context.Background(), of)
				due[of] = time.Now().Add(r.When(of))
			}
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
	}
}

func TestRefusedObjectsAreTriedRarelyAndSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fails(1000, 20*time.Second, refusal)
		if most := 1000 + 21*perSecond; r.tries > most {
			t.Errorf("%d tries of 1000 objects in 20 s, at most %d", r.tries, most)
		}
		if said := strings.Count(r.log.String(), "\n"); said != 1000 {
			t.Errorf("said %d times", said)
		}
	})
}

// Given thousands of failures, as of objects with many events that a policy refuses. Then no retry waits longer than
// promised.
func TestNoRetryWaitsLongerThanPromised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for n := range 100 * most / time.Second * perSecond {
			of := reconcile.Request{NamespacedName: types.NamespacedName{Name: fmt.Sprint("vm-", n%500)}}
			r.failed(of, true)
			if d := r.When(of); d > most {
				t.Fatalf("after %d failures one waits %v", n, d)
			}
		}
	})
}

func TestAStaleCacheIsTriedAtOnceBesideThousands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fails(1000, time.Second, refusal)
		of := reconcile.Request{NamespacedName: types.NamespacedName{Name: "healthy"}}
		r.failed(of, false)
		if d := r.When(of); d > 100*time.Millisecond {
			t.Errorf("it waits %v", d)
		}
		if r.Forget(of); r.NumRequeues(of) != 0 {
			t.Error("it is not forgotten")
		}
	})
}

func TestAConflictIsSaidOnlyWhenItStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fails(1, 50*time.Millisecond, fmt.Errorf("wrapped: %w", behind))
		if r.log.Len() > 0 {
			t.Errorf("said at once: %s", r.log.String())
		}
		r.fails(1, time.Minute, behind)
		if said := strings.Count(r.log.String(), "\n"); said != 1 {
			t.Errorf("said %d times in a minute", said)
		}
	})
}
