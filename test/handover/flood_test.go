//go:build nightly && !unit

package handover

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given launchers that flood agents and QEMU. Meanwhile a real guest of these nodes is moved and
// shut down as ever. Noise instead of a guest ends the QEMU that waited for it, and no other.
func TestAGuestIsMovedAndShutDownAmongHostileLaunchers(t *testing.T) {
	w := givenShipped(t)
	v := w.guarded(node.Spec{GuestAgent: true})
	v.watchForTwo()
	all := attacks()
	hostile := w.begin(map[string]attack{
		"noise":                        {source: "random", target: realQEMU, options: all["the stream never ends"].options, want: "the launcher says failed"},
		"the stream never ends":        all["the stream never ends"],
		"vm.json changes all the time": all["vm.json changes all the time"],
	}, v)
	watch := w.watchAgents()
	hostile.lie()
	for _, to := range []*host{w.b, w.a} {
		began := time.Now()
		v.mustMove(to, "")
		t.Logf("moved in %v", time.Since(began))
	}
	v.ends()
	hostile.settle()
	watch()
}
