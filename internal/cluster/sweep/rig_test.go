package sweep

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// world is a sweeper with an API server in memory.
type world struct {
	*testing.T
	*sweeper

	registry *prometheus.Registry
	log      bytes.Buffer
	events   *events.FakeRecorder
	again    chan event.GenericEvent
	crd      error                                    // what reading the CRD returns
	fails    func(verb string, o client.Object) error // what a write or a live read returns
}

func given(t *testing.T) *world {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), kubevirt.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, registry: prometheus.NewRegistry(), events: events.NewFakeRecorder(100), again: make(chan event.GenericEvent, 100)}
	w.fails = func(string, client.Object) error { return nil }
	c := fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(&kubevirt.VirtualMachineInstance{}, &kubevirt.VirtualMachineInstanceMigration{}, &corev1.Pod{}).Build()
	writes := interceptor.NewClient(c, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if err := w.fails("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, options...)
		},
	})
	live := interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, crd := o.(*metav1.PartialObjectMetadata); crd {
				return w.crd
			}
			if err := w.fails("get", o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	w.sweeper = &sweeper{Client: writes, synced: func(context.Context) error { return nil }, Config: Config{
		Log: slog.New(slog.NewTextHandler(&w.log, nil)), Live: live, Events: w.events, Settings: settings.New(c, func() bool { return true }),
		Meter: metrics.New(w.registry), Evacuations: true, Migrations: true, Budgets: true, Nodes: true, Again: w.again,
	}}
	w.make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	return w
}

func (w *world) make(o client.Object) {
	w.Helper()
	if err := w.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

// vm makes a VM that runs on a node with its launcher.
func (w *world) vm(name, node string) *kubevirt.VirtualMachineInstance {
	w.Helper()
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID("uid-" + name)}}
	v.Status.Phase, v.Status.NodeName = kubevirt.VMIRunning, node
	w.make(v)
	w.make(w.pod("virt-launcher-"+name, name, node))
	return v
}

func (w *world) pod(name, vm, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
		Labels: map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: "uid-" + vm}, Annotations: map[string]string{kubevirt.DomainAnnotation: vm}}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}

// target makes the target pod of a migration on node b.
func (w *world) target(vm, uid string) *corev1.Pod {
	w.Helper()
	p := w.pod(migration.TargetPodName(vm, uid), vm, "b")
	p.Labels[kubevirt.MigrationJobLabel] = uid
	w.make(p)
	return p
}

func (w *world) migration(name, vm string, phase kubevirt.MigrationPhase) {
	w.Helper()
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID("uid-" + name), Finalizers: []string{migration.Finalizer}}}
	m.Spec.VMIName, m.Status.Phase = vm, phase
	w.make(m)
}

func (w *world) budget(vmi string) *policyv1.PodDisruptionBudget {
	w.Helper()
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: evacuation.BudgetName(vmi), UID: types.UID(vmi)}}
	w.make(b)
	return b
}

// there reports whether an object exists, and reads it.
func (w *world) there(o client.Object) bool {
	w.Helper()
	err := w.Get(w.Context(), client.ObjectKeyFromObject(o), o)
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	return err == nil
}

// removed asserts what the metric counts.
func (w *world) removed(want map[metrics.Leftover]int) {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	kinds := 0
	for _, f := range families {
		if f.GetName() != "vmgrace_leftovers_removed_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			kinds++
			if kind := metrics.Leftover(m.GetLabel()[0].GetValue()); int(m.GetCounter().GetValue()) != want[kind] {
				w.Errorf("%s: %v counted, want %d", kind, m.GetCounter().GetValue(), want[kind])
			}
		}
	}
	if kinds != 7 {
		w.Errorf("%d kinds", kinds)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(fmt.Errorf("unexpected: %w", err))
	}
}
