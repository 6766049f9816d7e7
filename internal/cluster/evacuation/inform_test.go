package evacuation

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
)

const burst = 50

// Given a node of 50 VMs that is drained. Then its launchers are annotated for the descheduler at
// a bounded rate, all of them within seconds, and each once.
func TestTheLaunchersOfABurstAreAnnotatedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var vms []*move.VM
		builder := fake.NewClientBuilder()
		for n := range burst {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("launcher-", n), UID: "p"}, Spec: corev1.PodSpec{NodeName: "a"}}
			builder.WithObjects(&pod)
			vms = append(vms, &move.VM{
				Evacuee: evacuation.Evacuee{VMI: &kubevirt.VirtualMachineInstance{Status: kubevirt.VirtualMachineInstanceStatus{NodeName: "a", EvacuationNodeName: "a"}}},
				Pods:    []corev1.Pod{pod},
			})
		}
		r := &reconciler{Config: Config{Log: slog.New(slog.DiscardHandler)}, Client: builder.Build(), informs: newInforms()}
		for second := range 5 {
			var waiting []*move.VM
			for _, v := range vms {
				waits, err := r.inform(t.Context(), v)
				kit.Must(t, err)
				if waits {
					waiting = append(waiting, v)
				}
			}
			if want := max(0, burst-(second+1)*informsPerSecond); len(waiting) != want {
				t.Fatalf("after %d s %d wait, want %d", second, len(waiting), want)
			}
			vms = waiting
			<-time.After(time.Second)
		}
		all := &corev1.PodList{}
		kit.Must(t, r.List(t.Context(), all, client.InNamespace("n")))
		for _, p := range all.Items {
			if _, evictOnly := p.Annotations[kubevirt.RequestEvictOnlyAnnotation]; !evictOnly || p.Annotations[kubevirt.EvictionInProgressAnnotation] != inProgress {
				t.Errorf("%s: %v", p.Name, p.Annotations)
			}
		}
	})
}

// Given a burst of others' evictions. Then a launcher that the descheduler asked for is annotated at once: without
// that it takes its eviction for failed, and evicts others.
func TestTheDeschedulersOwnEvictionsDoNotWait(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "launcher", UID: "p"}, Spec: corev1.PodSpec{NodeName: "a"}}
	r := &reconciler{Client: fake.NewClientBuilder().WithObjects(&pod).Build(), informs: rate.NewLimiter(0, 0)}
	for _, source := range []string{"", kubevirt.EvictionSourceDescheduler} {
		vmi := &kubevirt.VirtualMachineInstance{Status: kubevirt.VirtualMachineInstanceStatus{NodeName: "a", EvacuationNodeName: "a", Mark: &kubevirt.Mark{NodeName: "a", Source: source}}}
		waits, err := r.inform(t.Context(), &move.VM{Evacuee: evacuation.Evacuee{VMI: vmi}, Pods: []corev1.Pod{pod}})
		if err != nil || waits != (source == "") {
			t.Errorf("asked for by %q: %v, %v", source, waits, err)
		}
		now := &corev1.Pod{}
		kit.Must(t, r.Get(t.Context(), client.ObjectKeyFromObject(&pod), now))
		if _, said := now.Annotations[kubevirt.EvictionInProgressAnnotation]; said == waits {
			t.Errorf("asked for by %q: %v", source, now.Annotations)
		}
	}
}

// recorded has the notes of Events, and when the last one was sent.
type recorded struct {
	events.EventRecorder

	mu    sync.Mutex
	names []string
	last  time.Time
}

func (r *recorded) Eventf(of, _ runtime.Object, _, _, _, _ string, _ ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o, ok := of.(client.Object); ok {
		r.names = append(r.names, o.GetName())
	}
	r.last = time.Now()
}

func (r *recorded) sent() ([]string, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.names), r.last
}

// Given 50 Events at once. Then 20 are sent at once and the others within seconds, each about the
// object as it was.
func TestTheEventsOfABurstAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorded{}
		s := spread{r, newInforms()}
		began := time.Now()
		for n := range burst {
			of := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p-", n)}}
			s.Eventf(of, nil, corev1.EventTypeNormal, "Reason", "Action", "note")
			if n >= informsPerSecond {
				of.Name = "another"
			}
		}
		if names, _ := r.sent(); len(names) != informsPerSecond {
			t.Errorf("%d are sent at once", len(names))
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		names, last := r.sent()
		if len(names) != burst || last.Sub(began) > 2*time.Second {
			t.Errorf("%d are sent, the last after %v", len(names), last.Sub(began))
		}
		for n, name := range names {
			if name != fmt.Sprint("p-", n) {
				t.Errorf("%d is about %s", n, name)
			}
		}
	})
}
