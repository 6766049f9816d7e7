package eviction

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Given a guest with file systems of its host: kubelet signals all containers of its pod at once.
// Then virtiofsd waits as the guest does, also one that another webhook adds later.
func TestTheFileSystemsOfAGuestWaitWithIt(t *testing.T) {
	own := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
	ours := &corev1.Lifecycle{PreStop: hook("60")}
	for name, c := range map[string]struct {
		guest, fs *corev1.Lifecycle
		want      []string
	}{
		"new": {nil, nil, []string{
			"/spec/volumes", "/spec/containers/1/lifecycle", "/spec/containers/1/volumeMounts", "/spec/containers/2/lifecycle", "/spec/containers/2/volumeMounts",
		}},
		"asked again": {ours, ours, []string{"/spec/containers/1/lifecycle/preStop", "/spec/containers/2/lifecycle/preStop"}},
		"added later": {ours, nil, []string{
			"/spec/containers/1/lifecycle/preStop", "/spec/containers/2/lifecycle", "/spec/containers/2/volumeMounts",
		}},
		"its own hook": {nil, own, []string{"/spec/volumes", "/spec/containers/1/lifecycle", "/spec/containers/1/volumeMounts"}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "istio-proxy"}, {Name: guestContainer, Lifecycle: c.guest}, {Name: "virtiofs-share", Lifecycle: c.fs},
		}}}
		var got []string
		for _, step := range heldPatch(pod, 1, evacuation.LauncherGrace{}) {
			got = append(got, step.Path)
		}
		if want := append([]string{"/spec/terminationGracePeriodSeconds", "/metadata/annotations"}, c.want...); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
