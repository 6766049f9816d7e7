package migrate

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

func (w *world) moved() {
	w.t.Helper()
	w.eventually("the guest has moved", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceGone && s.TargetState == kubevirt.TargetRunning && slices.Equal(w.resumed, []string{"b"})
	})
}

func (w *world) stayed() {
	w.t.Helper()
	w.eventually("the guest counts as one that ran on", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent && len(w.resumed) == 0
	})
}

// libvirtd is killed, or hangs, while it ends the source's QEMU. Its log shows that the
// guest has left. Formerly a libvirtd that was killed there cost the guest: the complete
// copy at the target was removed.
func TestTheLogOfLibvirtSaysThatAGuestHasLeftWhereLibvirtDoesNot(t *testing.T) {
	for name, answers := range map[string]bool{"killed": true, "hangs": false} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			w.left = true
			w.sends = func(ctx context.Context) error {
				w.becomes(hypervisor.StayBusy, hypervisor.StayPaused)
				w.looked("a")
				w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
				if !answers {
					<-ctx.Done()
				}
				return errBroken
			}
			w.start()
			w.moved()
		})
	}
}

// libvirt answers nothing about a domain while it cleans up. The guest is stopped until the
// target knows that QEMU has ended: the source's agent does not wait for libvirt.
func TestOnceQEMUHasEndedNoAnswerAboutItIsWaitedFor(t *testing.T) {
	w := given(t)
	w.left = true
	w.sends = func(ctx context.Context) error {
		w.becomes(hypervisor.StayBusy, hypervisor.StayPaused)
		w.looked("a")
		w.mu.Lock()
		w.hangs = true
		before := w.looks["a"] // a look that begins right now has no answer either
		w.mu.Unlock()
		w.change()
		w.eventually("a looks", func() bool { return w.looks["a"] > before })
		w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
		<-ctx.Done()
		return errBroken
	}
	w.start()
	w.moved()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.hung) != 1 || !errors.Is(w.hung[0], context.Canceled) {
		t.Errorf("questions about the domain ended with %v, want one that is called off with QEMU's end", w.hung)
	}
}

// If neither libvirt nor its log has the reason why QEMU ended, nothing is resumed.
func TestTheEndOfQEMUIsNotExplainedBeforeLibvirtAnswers(t *testing.T) {
	w := given(t)
	answer := make(chan struct{})
	w.sends = func(context.Context) error {
		w.becomes(hypervisor.StayBusy, hypervisor.StayPaused)
		w.looked("a")
		w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
		<-answer
		return errBroken
	}
	w.start()
	<-w.qemu.done
	w.looked("a")
	w.looked("a") // and again, without an answer
	w.mu.Lock()
	if state := w.m.Status.MigrationState.SourceState; state != "" || len(w.resumed) > 0 {
		t.Errorf("source state %q, resumed %v", state, w.resumed)
	}
	w.mu.Unlock()
	close(answer)
	w.stayed()
}

// A job that ends before libvirt begins with the migration is not the migration's end.
// Formerly a guest that moved then counted as one that ran on. Its copy at the target was
// removed, and it was lost.
func TestAnotherJobBeforeTheMigrationIsNotItsEnd(t *testing.T) {
	w := given(t)
	w.sends = func(context.Context) error {
		for _, is := range []hypervisor.Stay{hypervisor.StayBusy, hypervisor.StayRunning, hypervisor.StayBusy} {
			w.becomes(is, hypervisor.StayAbsent)
			w.looked("a")
		}
		w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
		return nil
	}
	w.start()
	w.moved()
}

// A guest that was sent and that libvirt could not resume has not run since: the end of its QEMU is
// no reason to remove what arrived.
func TestTheEndOfASourceThatCouldNotBeResumedKeepsWhatArrived(t *testing.T) {
	w := given(t)
	w.sends = func(context.Context) error {
		w.becomes(hypervisor.StayNotResumed, hypervisor.StayBusy)
		return errBroken
	}
	w.start()
	w.eventually("it was sent", func() bool {
		return w.m.Status.Phase == kubevirt.MigrationRunning && w.stays["a"] == hypervisor.StayNotResumed
	})
	w.looked("a")
	w.looked("a")
	w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
	w.moved()
}

// The source's agent is started again after its guest's QEMU has ended.
func TestAnAgentThatIsStartedAgainKnowsWhetherItsGuestHasLeft(t *testing.T) {
	here, before := grace.Instance{UUID: "u", PID: 1, Start: 1}, grace.Instance{UUID: "u"}
	for name, c := range map[string]struct {
		former  grace.Instance
		log     bool
		written bool
		then    func(*world)
	}{
		"libvirt's log has it":                       {former: here, log: true, then: (*world).moved},
		"the agent before has recorded it":           {former: here, written: true, then: (*world).moved},
		"no evidence":                                {former: here, then: (*world).stayed},
		"after a reboot, libvirt's log has it":       {former: before, log: true, then: (*world).moved},
		"after a reboot, no evidence":                {former: before, then: (*world).stayed},
		"no record is left, the agent before has it": {written: true, then: (*world).moved},
		"no record is left, no evidence":             {then: (*world).stayed},
	} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			dir := t.TempDir()
			w.dirs["a"], w.former, w.left = dir, c.former, c.log
			if c.written {
				if err := os.WriteFile(filepath.Join(dir, "left-m-1"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			socket := filepath.Join(dir, "OFANAGENTTHATWASKILLED")
			if err := os.WriteFile(socket, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			w.m.Status.Phase = kubevirt.MigrationRunning
			w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
			w.start()
			c.then(w)
			w.end()
			w.eventually("nothing is left of it", func() bool {
				files, err := os.ReadDir(dir)
				return err == nil && len(files) == 0
			})
		})
	}
}

// end ends the migration as the controller does.
func (w *world) end() {
	w.mu.Lock()
	is := w.m.DeepCopy()
	is.Status.Phase = kubevirt.MigrationFailed
	w.m = is
	w.mu.Unlock()
	w.change()
}

// The object is gone despite its finalizer, before the target's agent has seen it Running.
// The agents decide among themselves. Formerly the arrived guest stayed paused for ever.
func TestAGuestWhoseMigrationsObjectIsGoneGoesOn(t *testing.T) {
	w := given(t)
	w.late, w.libvirt = kubevirt.MigrationTargetReady, libvirtOf(t)
	w.sends = func(ctx context.Context) error {
		w.mu.Lock()
		_, socket, _ := strings.Cut(w.uri, "socket=")
		w.mu.Unlock()
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		defer c.Close()
		w.eventually("the target lets it in", func() bool { return w.nodes["b"].receives("m-1") })
		w.becomes(hypervisor.StayBusy, hypervisor.StayPaused)
		w.mu.Lock()
		w.stripped = true
		w.mu.Unlock()
		w.looked("b")
		w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
		return nil
	}
	w.start()
	w.eventually("it goes on at the target", func() bool { return slices.Equal(w.resumed, []string{"b"}) })
}

// The source's watch may show the target's offer before the target's own watch does.
// Formerly the arrived guest was taken for a domain that had been there, and was lost.
func TestAGuestThatArrivesBeforeTheTargetsWatchIsLetIn(t *testing.T) {
	w := given(t)
	w.late = kubevirt.MigrationPreparingTarget
	w.sends = func(context.Context) error {
		w.becomes(hypervisor.StayBusy, hypervisor.StayPaused)
		w.looked("b")
		w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
		return nil
	}
	w.start()
	w.moved()
}

func (n *Node) receives(uid string) bool {
	n.mu.Lock()
	s := n.sides[uid]
	n.mu.Unlock()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receiving
}

// At the target the guest would run on.
func TestAGuestThatAnErrorHasStoppedIsNotMoved(t *testing.T) {
	for _, stopped := range []hypervisor.Stay{hypervisor.StayStopped, hypervisor.StayNotResumed} {
		w := given(t)
		w.becomes(stopped, hypervisor.StayAbsent)
		w.start()
		w.stayed()
		w.mu.Lock()
		if why := w.m.Status.MigrationState.FailureReason; why != "the guest is paused, and not by its user: it can be moved once it runs" || len(w.resumed) > 0 {
			t.Errorf("%s: %s, resumed %v", stopped, why, w.resumed)
		}
		w.mu.Unlock()
	}
}

// A network that drops all packets closes no connection.
func TestAControlConnectionEndsAfterThePeerTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		s := newSide(New(Config{Log: slog.New(slog.DiscardHandler)}), &Migration{}, false)
		begin := time.Now()
		if err := s.exchange(t.Context(), newLink(ours)); err != nil {
			t.Log(err)
		}
		if took := time.Since(begin); took != peerTimeout {
			t.Errorf("ended after %v, want %v", took, peerTimeout)
		}
	})
}

// Given records of guests that have left, one of a migration that was deleted while no agent ran.
// When an agent starts, then it removes that one. Otherwise each such migration would leave a
// file for ever.
func TestARecordOfADepartureEndsWithItsMigration(t *testing.T) {
	w := given(t)
	w.m.Status.Phase = kubevirt.MigrationSucceeded // without a side here
	w.dirs["a"] = t.TempDir()
	for name, text := range map[string]string{"left-z-gone": "ns/former", "left-m-1": "ns/move", "left-unnamed": ""} {
		if err := os.WriteFile(filepath.Join(w.dirs["a"], name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool { _, err := os.Stat(filepath.Join(w.dirs["a"], name)); return err == nil }
	w.start()
	w.eventually("the one of the deleted migration is removed", func() bool { return !there("left-z-gone") })
	if !there("left-unnamed") || !there("left-m-1") {
		t.Error("one whose migration may exist is removed, too")
	}
}
