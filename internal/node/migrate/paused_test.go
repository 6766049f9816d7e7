package migrate

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// paused returns a world whose guest was paused by its user.
func paused(t *testing.T) *world {
	t.Helper()
	w := given(t)
	w.becomes(hypervisor.StayPaused, hypervisor.StayAbsent)
	return w
}

// movedPaused waits until the target has the guest, still paused.
func (w *world) movedPaused() {
	w.t.Helper()
	w.eventually("the guest has moved, and stays paused", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceGone && s.TargetState == kubevirt.TargetRunning && w.stays["b"] == hypervisor.StayPaused && len(w.resumed) == 0
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.m.Status.MigrationState.GuestPaused {
		w.t.Error("an agent that restarts would resume it")
	}
	if _, err := os.Stat(filepath.Join(w.dirs["b"], "paused-1-1")); err != nil {
		w.t.Error("it would be sent again before it has run:", err)
	}
}

// Its disks are inactive: QEMU would fail, and with it the guest.
func TestAGuestThatArrivedPausedIsNotSentSoAgain(t *testing.T) {
	w := paused(t)
	w.dirs["a"] = t.TempDir()
	if err := os.WriteFile(filepath.Join(w.dirs["a"], "paused-1-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.stayed()
	w.mu.Lock()
	defer w.mu.Unlock()
	if why := w.m.Status.MigrationState.FailureReason; !strings.Contains(why, "it can be moved while it runs") {
		t.Error(why)
	}
}

func TestAPausedGuestThatIsNotSentStaysPaused(t *testing.T) {
	w := paused(t)
	w.sends = func(context.Context) error {
		w.becomes(hypervisor.StayBusy, hypervisor.StayBusy)
		w.looked("a")
		w.becomes(hypervisor.StayPaused, hypervisor.StayAbsent)
		return errBroken
	}
	w.start()
	w.stayed()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stays["a"] != hypervisor.StayPaused || len(w.removed) > 0 || w.m.Status.MigrationState.FailureReason != errBroken.Error() {
		t.Errorf("%v, removed %v, %+v", w.stays, w.removed, w.m.Status.MigrationState)
	}
}

// An agent that starts cannot see whether libvirt still hands the guest over.
func TestAnAgentThatStartsAsksWhereAPausedGuestIs(t *testing.T) {
	for name, c := range map[string]struct {
		there hypervisor.Stay
		ends  func(*world)
	}{
		"arrived": {hypervisor.StayPaused, func(w *world) {
			w.movedPaused()
			if !slices.Equal(w.removed, []string{"a"}) {
				t.Errorf("removed %v", w.removed)
			}
		}},
		"never sent": {hypervisor.StayAbsent, func(w *world) {
			w.stayed()
			if len(w.removed) > 0 {
				t.Errorf("removed %v", w.removed)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := paused(t)
			w.becomes(hypervisor.StayPaused, c.there)
			w.m.Status.Phase, w.m.Status.MigrationState.GuestPaused = kubevirt.MigrationRunning, true
			w.address = "127.0.0.1:1"
			w.start()
			w.mu.Lock()
			is := w.m.DeepCopy()
			is.Status.MigrationState.TargetNodeAddress = w.addrs["b"]
			w.m = is
			w.mu.Unlock()
			w.change()
			c.ends(w)
		})
	}
}
