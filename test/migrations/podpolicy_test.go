//go:build !unit

package migrations

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given the token of an agent. When the agent writes a pod's status, then the policy lets the
// condition ShuttingDown of a launcher pod of its node pass, and nothing else. Otherwise one
// compromised node could make pods elsewhere look ended or ready, or change their labels.
func TestAnAgentWritesOneConditionOfItsLaunchers(t *testing.T) {
	s := given(t)
	s.vm("vm")
	launcher := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: "virt-launcher-vm"}}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: "web"}, Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	s.Make(other, rig.PodRuns)
	patch := func(node string, p *corev1.Pod, text string) error {
		return shared.agents[node].Status().Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(text)))
	}
	condition := func(fields string) string { return `{"status":{"conditions":[{` + fields + `}]}}` }
	down := condition(`"type":"ShuttingDown","status":"True","reason":"VMIDeleted","message":"phase=ShuttingDown","lastTransitionTime":"2026-03-01T12:00:00Z"`)
	for what, text := range map[string]string{
		"the phase":             `{"status":{"phase":"Succeeded"}}`,
		"another condition":     condition(`"type":"Ready","status":"False"`),
		"a new condition":       condition(`"type":"Mine","status":"True"`),
		"a removed condition":   condition(`"type":"Ready","$patch":"delete"`),
		"a long message":        condition(`"type":"ShuttingDown","status":"True","message":"` + strings.Repeat("x", 257) + `"`),
		"a long reason":         condition(`"type":"ShuttingDown","status":"True","reason":"` + strings.Repeat("x", 129) + `"`),
		"a status that is none": condition(`"type":"ShuttingDown","status":"Maybe"`),
		"a label":               `{"metadata":{"labels":{"app":"x"}},"status":` + strings.TrimPrefix(down, `{"status":`),
		"its own label":         `{"metadata":{"labels":{"kubevirt.io":null}},"status":` + strings.TrimPrefix(down, `{"status":`),
		"an annotation":         `{"metadata":{"annotations":{"kubevirt.io/domain":"x"}},"status":` + strings.TrimPrefix(down, `{"status":`),
		"a finalizer":           `{"metadata":{"finalizers":["a.b/c"]},"status":` + strings.TrimPrefix(down, `{"status":`),
		"addresses":             `{"status":{"podIP":"192.0.2.1","podIPs":[{"ip":"192.0.2.1"}]}}`,
	} {
		refused(t, what, patch("node-a", launcher, text))
	}
	refused(t, "a pod of another node", patch("node-b", launcher, down))
	refused(t, "a pod that is no launcher", patch("node-a", other, down))
	kit.Must(t, patch("node-a", launcher, down))
	kit.Must(t, patch("node-a", launcher, condition(`"type":"ShuttingDown","status":"False","reason":"NotShuttingDown","message":""`)))
	refused(t, "its own condition removed", patch("node-a", launcher, condition(`"type":"ShuttingDown","$patch":"delete"`)))
	is := rig.Read[corev1.Pod](s.Space, launcher.Name)
	if is.Status.Phase != corev1.PodRunning || len(is.Status.Conditions) != 3 {
		t.Errorf("%+v", is.Status)
	}
}
