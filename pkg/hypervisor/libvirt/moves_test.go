//go:build !unit

package libvirt

import (
	"path/filepath"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

func TestContractOfMigrations(t *testing.T) {
	other := node.New(t)
	drivertest.RunMoves(t, drivertest.MoveSuite{Timeout: 2 * testTimeout, New: func(t *testing.T) *drivertest.MoveHarness {
		t.Helper()
		source, target := mover(t, shared), mover(t, other)
		guests := map[string]*node.Guest{}
		return &drivertest.MoveHarness{
			Sender: source, Source: source, Target: target,
			Start: func(t *testing.T) string {
				t.Helper()
				g := shared.Boot(t, node.Spec{})
				guests[g.Domain] = g
				t.Cleanup(func() {
					ctx := unending{t}.Context()
					if stay, i, err := target.Look(ctx, g.Domain); err == nil && i.UUID == g.UUID {
						t.Logf("on the target it is %q", stay)
						kit.Must(t, target.Remove(ctx, g.Domain, i))
					}
				})
				return g.Domain
			},
			Connect: func(*testing.T, string) string {
				return other.URI()
			},
			Pause: func(t *testing.T, name string) { t.Helper(); guests[name].Virsh(t, "suspend") },
		}
	}})
}

// mover returns a migrator of a node. It closes when the test ends.
func mover(t *testing.T, n *node.Node) *Migrator {
	t.Helper()
	leavesNothing(t)
	d := New(Config{
		URI: n.URI(), RunDir: n.RunDir(), LogDir: filepath.Join(n.Dir, "log", "qemu"), Logger: logger(t),
	})
	t.Cleanup(func() { kit.Must(t, d.Close()) })
	return d.Migrator()
}

// Given a guest that has panicked and is kept, when it is to be moved, then it is there, and stopped.
func TestAPanickedGuestHasNotEndedForAMove(t *testing.T) {
	m := mover(t, shared)
	g := shared.Boot(t, node.Spec{Firmware: true, Panics: true})
	node.Eventually(t, testTimeout, func() bool {
		stay, i, err := m.Look(bounded(t), g.Domain)
		if err != nil || stay == hypervisor.StayAbsent {
			t.Fatalf("%q, %v", stay, err)
		}
		return stay == hypervisor.StayStopped && i.PID == g.PID
	}, "it is stopped")
}
