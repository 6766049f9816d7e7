package migration

import (
	"math"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Given a launcher with probes that its guest answers. When it is the target of a migration, then
// none of them ends it, or keeps the guest from coming, before the guest has arrived: it runs as soon
// as its containers do, and kubelet asks no other probe until the startup probe has succeeded, which
// never gives up and asks for what the liveness probe does. A sidecar's would hold up the pod.
func TestNoProbeDecidesBeforeTheGuestHasArrived(t *testing.T) {
	guest := func(port int32, failures int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, FailureThreshold: failures}
	}
	const never = math.MaxInt32
	mounts := []corev1.VolumeMount{{Name: "vmgrace"}}
	for name, c := range map[string]struct{ given, want corev1.Container }{
		"readiness":            {corev1.Container{ReadinessProbe: guest(22, 3)}, corev1.Container{ReadinessProbe: guest(22, 3)}},
		"startup":              {corev1.Container{StartupProbe: guest(22, 3)}, corev1.Container{StartupProbe: guest(22, never)}},
		"liveness":             {corev1.Container{LivenessProbe: guest(22, 3)}, corev1.Container{LivenessProbe: guest(22, 3), StartupProbe: guest(22, never)}},
		"liveness and startup": {corev1.Container{LivenessProbe: guest(22, 3), StartupProbe: guest(80, 9)}, corev1.Container{LivenessProbe: guest(22, 3), StartupProbe: guest(22, never)}},
	} {
		c.given.VolumeMounts = mounts
		source := &corev1.Pod{Spec: corev1.PodSpec{
			Containers:     []corev1.Container{c.given, {Name: "other", LivenessProbe: guest(1, 3)}},
			InitContainers: []corev1.Container{*c.given.DeepCopy()},
		}}
		p := targetPod(aMove(), targetPod(aMove(), source)) // it may move again
		for which, got := range map[string]corev1.Container{"container": p.Spec.Containers[0], "sidecar": p.Spec.InitContainers[0]} {
			want := c.want
			if which == "sidecar" {
				want.LivenessProbe, want.StartupProbe = nil, nil
			}
			if !reflect.DeepEqual(got.LivenessProbe, want.LivenessProbe) || !reflect.DeepEqual(got.StartupProbe, want.StartupProbe) || !reflect.DeepEqual(got.ReadinessProbe, want.ReadinessProbe) {
				t.Errorf("%s, %s: liveness %v, startup %v, readiness %v", name, which, got.LivenessProbe, got.StartupProbe, got.ReadinessProbe)
			}
		}
		if other := p.Spec.Containers[1]; other.StartupProbe != nil || !reflect.DeepEqual(other.LivenessProbe, guest(1, 3)) {
			t.Errorf("%s: the probe of another container is %v", name, other.LivenessProbe)
		}
	}
	for phase, runs := range map[corev1.PodPhase]bool{corev1.PodPending: false, corev1.PodRunning: true, corev1.PodFailed: false} {
		unready := corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}}
		if got := podFacts(&corev1.Pod{Status: unready}, nil).Runs; got != runs {
			t.Errorf("%s: runs %v", phase, got)
		}
	}
}
