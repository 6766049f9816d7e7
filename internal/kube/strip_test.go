package kube

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

func TestWhoseLauncherAPodIs(t *testing.T) {
	s := &Source{node: "n", now: func() grace.Mono { return 0 }}
	for name, c := range map[string]struct {
		annotations map[string]string
		want        key
	}{
		"by its annotation":    {map[string]string{domainAnnotation: "vm"}, key{"ns", "vm"}},
		"by its own name":      {nil, key{"ns", "virt-launcher-x"}},
		"by an empty one":      {map[string]string{domainAnnotation: ""}, key{"ns", "virt-launcher-x"}},
		"a name that is none":  {map[string]string{domainAnnotation: "../x"}, key{}},
		"another's annotation": {map[string]string{"kubevirt.io/domainx": "vm"}, key{"ns", "virt-launcher-x"}},
	} {
		o := &object{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "virt-launcher-x", UID: "u-1",
				Labels: map[string]string{launcherLabel: launcherValue}, Annotations: c.annotations,
			},
			Spec: json.RawMessage(`{"nodeName":"n"}`),
		}
		if got := s.stripPod(o, pod{}); got.of != c.want {
			t.Errorf("%s: %v, want %v", name, got.of, c.want)
		}
	}
}
