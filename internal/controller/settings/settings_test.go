package settings

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/controller/metrics"
)

// Given a cache that is not synced yet, a valid setting, then an invalid one. The settings are
// unknown, then the valid one counts, and it stays in force.
func TestTheLastValidSettingStays(t *testing.T) {
	known := runtime.NewScheme()
	if err := errors.Join(kubevirt.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kv.Spec.Configuration.EvictionStrategy = new(kubevirt.StrategyLiveMigrate)
	cache, synced := fake.NewClientBuilder().WithScheme(known).WithObjects(kv).Build(), false
	l := New(cache, func() bool { return synced })
	if err := l.Known(); !errors.Is(err, ErrUnknown) || l.Get().EvictionStrategy != "" {
		t.Errorf("%v, %q: a cache that is not synced counts", err, l.Get().EvictionStrategy)
	}
	synced = true
	if got := l.Get().EvictionStrategy; l.Known() != nil || got != kubevirt.StrategyLiveMigrate {
		t.Errorf("%v, %q", l.Known(), got)
	}
	kv.Spec.Configuration.EvictionStrategy = new(kubevirt.EvictionStrategy("Explode"))
	if err := cache.Update(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
	now, err := l.read()
	if err != nil || now.EvictionStrategy != kubevirt.StrategyLiveMigrate || len(now.problems) != 1 {
		t.Errorf("%v, %q, %d problems; want the last valid one and one problem", err, now.EvictionStrategy, len(now.problems))
	}
}

// Given a KubeVirt object with a gate of KubeVirt's own and one that is spelled like ours. Then
// each is an Event and counted, but beside KubeVirt only the one that is spelled like ours.
func TestAForeignGateIsNoProblemBesideKubeVirt(t *testing.T) {
	for beside, want := range map[bool][]string{
		false: {"LiveMigration", "NoExecuteEvictionLiveMigration"},
		true:  {"NoExecuteEvictionLiveMigration"},
	} {
		known := runtime.NewScheme()
		if err := errors.Join(kubevirt.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
			t.Fatal(err)
		}
		kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
		kv.Spec.Configuration.DeveloperConfiguration = &kubevirt.DeveloperConfiguration{FeatureGates: []string{"LiveMigration", "NoExecuteEvictionLiveMigration"}}
		recorder, registry, elected := events.NewFakeRecorder(10), prometheus.NewRegistry(), make(chan struct{})
		close(elected)
		r := &reporter{elected: elected, reported: map[string]bool{}, Config: Config{
			Log: slog.New(slog.DiscardHandler), Events: recorder, Meter: metrics.New(registry), BesideKubeVirt: beside,
			Live: New(fake.NewClientBuilder().WithScheme(known).WithObjects(kv).Build(), func() bool { return true }),
		}}
		for range 2 {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		if len(recorder.Events) != len(want) {
			t.Errorf("beside KubeVirt %v: %d Events, want %v", beside, len(recorder.Events), want)
		}
		for _, gate := range want {
			if text := <-recorder.Events; !strings.Contains(text, "UnknownFeatureGate") || !strings.Contains(text, `"`+gate+`" has no effect`) {
				t.Errorf("beside KubeVirt %v: %s, want %s", beside, text, gate)
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if got := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == "vmgrace_invalid_settings" && got != float64(len(want)) {
				t.Errorf("beside KubeVirt %v: vmgrace_invalid_settings is %v, want %d", beside, got, len(want))
			}
		}
	}
}
