package migration

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// indexer gives the fake client the indexes of the cache.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, o client.Object, field string, of client.IndexerFunc) error {
	i.WithIndex(o, field, of)
	return nil
}

// rig is the controller with an API server in memory; tests call its reconcilers.
type rig struct {
	*testing.T
	*reconciler

	queue    *queue
	podsFail error // what creating a pod returns
	reads    int   // of VMIs
}

func aRig(t *testing.T) *rig {
	t.Helper()
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kubevirt.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	b := fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(&object{}, &kubevirt.VirtualMachineInstance{}, &corev1.Pod{})
	if err := index.Add(t.Context(), indexer{b}); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t}
	b.WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, vmi := o.(*kubevirt.VirtualMachineInstance); vmi {
			r.reads++
		}
		return c.Get(ctx, key, o, options...)
	}, Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if _, pod := o.(*corev1.Pod); pod && r.podsFail != nil {
			return r.podsFail
		}
		if o.GetUID() == "" {
			o.SetUID(types.UID("uid-of-" + o.GetName()))
		}
		o.SetCreationTimestamp(metav1.Now())
		return c.Create(ctx, o, options...)
	}})
	c := b.Build()
	defaults := settings.New(nil, func() bool { return false })
	r.reconciler = &reconciler{Client: c, turns: newTurns(), phases: newPhases(),
		granted: make(chan event.GenericEvent, 10000), retry: make(chan event.GenericEvent, 1),
		Config: Config{Log: slog.New(slog.DiscardHandler), Live: c, Events: events.NewFakeRecorder(10000), Settings: defaults, Meter: metrics.New(prometheus.NewRegistry())}}
	r.queue = &queue{reconciler: r.reconciler}
	return r
}

func (r *rig) make(o client.Object) {
	r.Helper()
	if err := r.Create(r.Context(), o); err != nil {
		r.Fatal(err)
	}
}

// migrationOf makes a VM on node-a with its launcher, and a migration of it.
func (r *rig) migrationOf(vm string) *object {
	r.Helper()
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: vm, UID: types.UID("vmi-" + vm), Labels: map[string]string{kubevirt.NodeNameLabel: "node-a"}}}
	v.Status.Phase, v.Status.NodeName = kubevirt.VMIRunning, "node-a"
	r.make(v)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "virt-launcher-" + vm,
		Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: string(v.UID)}, Annotations: map[string]string{kubevirt.DomainAnnotation: vm}},
		Spec: corev1.PodSpec{NodeName: "node-a"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	r.make(p)
	m := &object{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m-" + vm}}
	m.Spec.VMIName = vm
	r.make(m)
	return m
}

// turn makes the queue compute, from all that is there: nothing tells it of changes here.
func (r *rig) turn() {
	r.Helper()
	r.queue.vms = nil
	if _, err := r.queue.Reconcile(r.Context(), reconcile.Request{}); err != nil {
		r.Fatal(err)
	}
}

// step reconciles a migration some times, as its own events would.
func (r *rig) step(m *object, times int) (result reconcile.Result, err error) {
	for range times {
		result, err = r.Reconcile(r.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
	}
	return result, err
}

func (r *rig) read(m *object) *object {
	r.Helper()
	now := &object{}
	if err := r.Get(r.Context(), client.ObjectKeyFromObject(m), now); err != nil {
		r.Fatal(err)
	}
	return now
}

func (r *rig) phase(m *object) kubevirt.MigrationPhase {
	r.Helper()
	return evacuation.PhaseOf(r.read(m))
}

func (r *rig) targetOf(m *object) *corev1.Pod {
	r.Helper()
	p := &corev1.Pod{}
	if err := r.Get(r.Context(), client.ObjectKey{Namespace: "n", Name: migration.TargetPodName(m.Spec.VMIName, string(m.UID))}, p); err != nil {
		r.Fatal(err)
	}
	return p
}

func TestATargetPodThatCannotBeMadeEndsTheMigration(t *testing.T) {
	r := aRig(t)
	m := r.migrationOf("a")
	r.podsFail = apierrors.NewInternalError(errors.New("the webhook\nis down"))
	r.turn()
	if _, err := r.step(m, 3); err == nil || r.phase(m) != kubevirt.MigrationScheduling {
		t.Fatalf("%v, phase %s", err, r.phase(m))
	}
	r.phases.now[m.UID] = seenPhase{phase: kubevirt.MigrationScheduling, states: "/", at: time.Now().Add(-migration.MakeTimeout), trouble: r.phases.now[m.UID].trouble}
	if _, err := r.step(m, 1); err != nil {
		t.Fatal(err)
	}
	now := r.read(m)
	if why := migration.StateOf(now).FailureReason; now.Status.Phase != kubevirt.MigrationFailed || !strings.Contains(why, "the webhook is down") {
		t.Errorf("%s: %q", now.Status.Phase, why)
	}
	select {
	case text := <-r.Events.(*events.FakeRecorder).Events: //nolint:errcheck // it is one
		if !strings.Contains(text, "MigrationFailed") {
			t.Error(text)
		}
	default:
		t.Error("no Event")
	}
}
