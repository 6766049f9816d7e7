package migrate

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// becomes sets the guest's state on both nodes.
func (w *world) becomes(a, b hypervisor.Stay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stays["a"], w.stays["b"] = a, b
	if a == hypervisor.StayAbsent {
		w.qemu.end()
	}
}

var errBroken = errors.New("the connection broke")

// A guest that is shut down right after its migration was aborted has run on, so its
// copy elsewhere is stale. The agent may see its QEMU's end before libvirt's answer.
func TestTheEndOfAGuestThatRanOnIsNotTakenForAMove(t *testing.T) {
	for name, seen := range map[string]bool{"the guest was seen to run": true, "not seen": false} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			gone := make(chan struct{})
			w.sends = func(ctx context.Context) error {
				w.becomes(hypervisor.StayBusy, hypervisor.StayPaused)
				w.looked("a")
				if seen {
					w.becomes(hypervisor.StayRunning, hypervisor.StayPaused)
					w.looked("a")
				}
				w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
				close(gone)
				if seen { // which decides, even if libvirt hangs
					<-ctx.Done()
				}
				return errBroken
			}
			w.start()
			<-gone
			w.eventually("the source's guest ran on, and what arrived is removed", func() bool {
				s := w.m.Status.MigrationState
				return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent && len(w.resumed) == 0
			})
		})
	}
}

// The source's libvirtd dies after it sent the guest, or cannot let it go on, because QEMU at the
// target has locked its disks. The guest stays paused there, and only the agents know that it has
// arrived.
func TestASourceThatIsLeftPausedEndsBeforeTheTargetRuns(t *testing.T) {
	for _, source := range []hypervisor.Stay{hypervisor.StayLeft, hypervisor.StayNotResumed} {
		t.Run(string(source), func(t *testing.T) {
			w := given(t)
			w.sends = func(context.Context) error {
				w.becomes(source, hypervisor.StayPaused)
				return errBroken
			}
			w.start()
			w.eventually("the guest has moved", func() bool {
				return slices.Equal(w.removed, []string{"a"}) && slices.Equal(w.resumed, []string{"b"}) &&
					w.m.Status.MigrationState.TargetState == kubevirt.TargetRunning
			})
		})
	}
}

// libvirt could not let the guest go on at the source, and it has not arrived.
func TestASourceThatCouldNotBeResumedGoesOnWhereNothingArrived(t *testing.T) {
	w := given(t)
	w.sends = func(context.Context) error {
		w.becomes(hypervisor.StayNotResumed, hypervisor.StayAbsent)
		return errBroken
	}
	w.start()
	w.eventually("it goes on at the source", func() bool { return slices.Equal(w.resumed, []string{"a"}) && len(w.removed) == 0 })
}

func TestOnlyTheSourceOfAnAgreedMigrationIsLetIn(t *testing.T) {
	w := given(t)
	w.sends = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	w.start()
	w.eventually("it is under way", func() bool { return w.m.Status.Phase == kubevirt.MigrationRunning })
	stranger := newAuthority(t)
	for name, c := range map[string]struct {
		who *Identity
		h   hello
	}{
		"another node":        {w.ca.node(t, "c"), hello{MigrationUID: "m-1", Role: roleRelay}},
		"no agreed migration": {w.ca.node(t, "a"), hello{MigrationUID: "m-2", Role: roleRelay}},
		"another authority":   {stranger.node(t, "a"), hello{MigrationUID: "m-1", Role: roleRelay}},
		"an unknown role":     {w.ca.node(t, "a"), hello{MigrationUID: "m-1", Role: "shell"}},
	} {
		c.who.roots.Store(w.ca.node(t, "a").roots.Load())
		if l, err := dial(t.Context(), c.who, "b", w.addrs["b"], c.h); err == nil {
			_ = l.Close()
			t.Errorf("%s was let in", name)
		}
	}
	// And a source does not connect to another node than the target.
	if l, err := dial(t.Context(), w.ca.node(t, "a"), "c", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleControl}); err == nil {
		_ = l.Close()
		t.Error("node b passed for node c")
	}
}
