package settings

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
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

// read lists a KubeVirt object as a client decodes it.
type read struct {
	client.Reader

	text string
}

func (r read) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if all, is := list.(*kubevirt.KubeVirtList); is {
		return json.Unmarshal([]byte(`{"items":[`+r.text+`]}`), all)
	}
	return nil
}

// sink takes Events in place of the API server.
type sink struct {
	events.EventSink

	made chan string
}

func (s sink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	if len(e.Action) == 0 || len(e.Action) > 128 {
		return nil, errors.New("the API server refuses the action " + e.Action)
	}
	s.made <- e.Reason + ": " + e.Note
	return e, nil
}

// Patch takes another Event that is the same as a former one.
func (s sink) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	return e, nil
}

// counting counts the Events that it passes on.
type counting struct {
	events.EventRecorder

	n int
}

func (c *counting) Eventf(about, related runtime.Object, kind, reason, action, note string, args ...any) {
	c.n++
	c.EventRecorder.Eventf(about, related, kind, reason, action, note, args...)
}

// Given a KubeVirt object with a gate of KubeVirt's own and one that is spelled like ours, and three
// fields that have no effect, one of them misspelt. Then each is an Event of its own, once, and counted,
// but beside KubeVirt, whose the others are, only what is spelled like ours.
func TestASettingWithoutEffectIsAnEvent(t *testing.T) {
	known := runtime.NewScheme()
	if err := errors.Join(kubevirt.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	for beside, want := range map[bool][]string{
		false: {
			".allowPostCopy has no effect", ".bandwithPerMigration has no effect", ".network has no effect",
			`"LiveMigration" has no effect`, `"NoExecuteEvictionLiveMigration" has no effect`,
		},
		true: {".bandwithPerMigration has no effect", `"NoExecuteEvictionLiveMigration" has no effect`},
	} {
		made := sink{made: make(chan string, 10)}
		broadcaster := events.NewBroadcaster(made)
		broadcaster.StartRecordingToSink(t.Context().Done())
		t.Cleanup(broadcaster.Shutdown)
		recorder := &counting{EventRecorder: broadcaster.NewRecorder(known, "test")}
		registry, elected := prometheus.NewRegistry(), make(chan struct{})
		close(elected)
		r := &reporter{elected: elected, reported: map[string]bool{}, Config: Config{
			Log: slog.New(slog.DiscardHandler), Events: recorder, Meter: metrics.New(registry), BesideKubeVirt: beside,
			Live: New(read{text: `{"apiVersion":"kubevirt.io/v1","kind":"KubeVirt","metadata":{"name":"kubevirt","namespace":"kubevirt","uid":"u"},
				"spec":{"configuration":{"developerConfiguration":{"featureGates":["LiveMigration","NoExecuteEvictionLiveMigration"]},
				"migrations":{"allowPostCopy":true,"bandwithPerMigration":"64Mi","network":"lan"}}}}`}, func() bool { return true }),
		}}
		for range 2 {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		if recorder.n != len(want) {
			t.Errorf("beside KubeVirt %v: %d Events, want %q", beside, recorder.n, want)
		}
		var got []string
		for range want {
			select {
			case text := <-made.made:
				got = append(got, text)
			case <-time.After(10 * time.Second):
				t.Fatalf("beside KubeVirt %v: Events %q, want %q", beside, got, want)
			}
		}
		slices.Sort(got)
		for i := range want {
			reason := "InvalidSetting: "
			if strings.HasPrefix(want[i], `"`) {
				reason = "UnknownFeatureGate: "
			}
			if !strings.HasPrefix(got[i], reason) || !strings.Contains(got[i], want[i]) {
				t.Errorf("beside KubeVirt %v: %s, want %s", beside, got[i], want[i])
			}
		}
		if n := gauge(t, registry); n != float64(len(want)) {
			t.Errorf("beside KubeVirt %v: vmgrace_invalid_settings is %v, want %d", beside, n, len(want))
		}
	}
}

func gauge(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "vmgrace_invalid_settings" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}
