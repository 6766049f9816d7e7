package evacuation

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// In a burst of evictions, marks and migrations come first. What only informs follows at this rate:
// the Events, and the descheduler's annotation.
const (
	informsPerSecond = 20
	informAgain      = time.Second
)

func newInforms() *rate.Limiter { return rate.NewLimiter(informsPerSecond, informsPerSecond) }

// spread is an EventRecorder that sends at most informsPerSecond, the others later.
type spread struct {
	events.EventRecorder

	limit *rate.Limiter
}

// Eventf implements events.EventRecorder.
func (s spread) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	wait := s.limit.Reserve().Delay()
	if wait == 0 {
		s.EventRecorder.Eventf(regarding, related, eventType, reason, action, note, args...)
		return
	}
	regarding = regarding.DeepCopyObject() // the caller goes on with it
	time.AfterFunc(wait, func() { s.EventRecorder.Eventf(regarding, related, eventType, reason, action, note, args...) })
}

// inProgress is KubeVirt's value of the descheduler's annotation.
const inProgress = "kubevirt"

// inform tells the descheduler of the VM's launchers which are being evacuated. It returns true if
// that has to wait for others. What the descheduler itself has asked for does not wait: without an
// answer it would evict others.
func (r *reconciler) inform(ctx context.Context, v *move.VM) (waits bool, err error) {
	requested, asked := evacuating(v), evacuation.ExplanationOf(v.VMI).Descheduler
	for i := range v.Pods {
		pod := &v.Pods[i]
		want := forDescheduler(pod, requested && pod.Spec.NodeName == v.VMI.Node())
		if want[kubevirt.EvictionInProgressAnnotation] != nil && !asked && !r.informs.Allow() {
			delete(want, kubevirt.EvictionInProgressAnnotation)
			waits = true
		}
		if err := patch.Metadata(ctx, r.Client, pod, "annotations", want); err != nil {
			return false, err
		}
	}
	return waits, nil
}

// forDescheduler returns the annotations of a launcher that are to change.
func forDescheduler(pod *corev1.Pod, evicting bool) map[string]any {
	want := map[string]any{}
	if _, ok := pod.Annotations[kubevirt.RequestEvictOnlyAnnotation]; !ok {
		want[kubevirt.RequestEvictOnlyAnnotation] = ""
	}
	switch _, ok := pod.Annotations[kubevirt.EvictionInProgressAnnotation]; {
	case evicting && !ok:
		want[kubevirt.EvictionInProgressAnnotation] = inProgress
	case !evicting && ok:
		want[kubevirt.EvictionInProgressAnnotation] = nil
	}
	return want
}
