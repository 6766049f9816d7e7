package settings

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
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
