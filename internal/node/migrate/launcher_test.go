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
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

var errFailed = errors.New("the launcher says failed")

// sent makes the source's launcher say that all was sent. It closes its connection unless keeps
// is set.
func (w *world) sent(keeps bool) {
	sends := w.sends
	kept := make(chan struct{})
	w.t.Cleanup(func() { close(kept) })
	w.sends = func(ctx context.Context) error {
		said, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			writes := w.pods.writes
			w.pods.writes = func(c net.Conn) error {
				err := writes(c)
				w.eventually("the target receives", func() bool { return w.stays["b"] != hypervisor.StayWaiting })
				w.mu.Lock()
				w.stays["a"] = hypervisor.StayLeft
				w.mu.Unlock()
				close(said)
				if keeps {
					<-kept
				}
				return err
			}
			_ = sends(context.WithoutCancel(ctx))
		}()
		<-said
		if !keeps {
			<-ended
		}
		return nil
	}
}

// something is more than sockets hold: as a real guest, it has not left before the target's agent
// has taken the connection.
func something(c net.Conn) error { _, err := c.Write(make([]byte, 4<<20)); return err }

// Given a launcher that lies about its guest, or says nothing more. Then the migration ends all
// the same, the guest stays at the source, whose QEMU is not ended, and the object says why.
func TestALauncherCannotKeepAMigrationFromEnding(t *testing.T) {
	const notGot = "the launcher says that the guest was sent, and node b has not got it"
	for name, c := range map[string]struct {
		given func(w *world)
		want  string
	}{
		"it was sent, and its stream never ends": {func(w *world) { w.sent(true) }, notGot},
		"it was sent, and arrives for ever": {func(w *world) {
			w.sent(false)
			w.pods.receives = func(c net.Conn) error { _, err := io.Copy(io.Discard, c); return err }
		}, notGot},
		"it was sent, and the target says nothing": {func(w *world) {
			w.sent(false)
			w.pods.receives = func(c net.Conn) error {
				_, err := io.Copy(io.Discard, c)
				w.mu.Lock()
				w.stays["b"] = hypervisor.StayUnknown
				w.mu.Unlock()
				return err
			}
		}, notGot},
		"it was sent, did not arrive, and is not let go on": {func(w *world) { w.sent(false); w.pods.deaf = "a" },
			notGot + "; its launcher does not let it go on"},
		"it was not sent, and the source says nothing": {func(w *world) {
			w.sends = func(context.Context) error {
				w.mu.Lock()
				w.stays["a"] = hypervisor.StayUnknown
				w.mu.Unlock()
				return errFailed
			}
		}, errFailed.Error()},
		"the source's agent has just started, and the launcher says nothing": {func(w *world) {
			w.m.Status.Phase, w.m.Status.MigrationState.DomainUUID = kubevirt.MigrationRunning, guestUUID
			w.stays["a"] = hypervisor.StayUnknown
		}, "the agent of node a was restarted"},
		"no socket can be made": {func(w *world) { w.pods.blocked = true }, errBlocked.Error()},
		"it arrives before it was sent, and its user has paused it": {func(w *world) {
			w.stays["a"] = hypervisor.StayPaused
			w.pods.silent, w.pods.writes = true, untilRefused
			sends := w.sends
			w.sends = func(ctx context.Context) error {
				w.mu.Lock()
				w.stays["b"] = hypervisor.StayPaused
				w.mu.Unlock()
				w.looked("b")
				return sends(ctx)
			}
		}, "the launcher has not connected its QEMU"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := givenPods(t, something)
			w.pods.receives = func(c net.Conn) error {
				_, err := io.Copy(io.Discard, c)
				w.mu.Lock()
				w.stays["b"] = hypervisor.StayAbsent // as an incomplete guest's QEMU ends
				w.mu.Unlock()
				return err
			}
			c.given(w)
			w.start()
			if why := w.whyStayed(); !strings.Contains(why, c.want) {
				t.Errorf("it stays because of %q, want %q", why, c.want)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if slices.Contains(w.removed, "a") || closed(w.qemu.done) {
				t.Error("it is ended at the source")
			}
		})
	}
}

// Given a launcher that carries out no request to end a migration. Then the agent gives up waiting
// for it.
func TestALauncherThatEndsNoMigrationIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := givenPods(t, something)
	w.m.Status.MigrationState.Options = &kubevirt.MigrationOptions{ProgressTimeout: 1}
	left := make(chan struct{})
	w.sends = func(ctx context.Context) error { <-ctx.Done(); close(left); return ctx.Err() }
	w.start()
	select {
	case <-left:
	case <-time.After(abortTimeout + callTimeout + 10*time.Second):
		t.Fatal("the agent waits for ever")
	}
	if why := w.whyStayed(); !strings.HasPrefix(why, "no progress for 1s") {
		t.Errorf("it stays because of %q", why)
	}
}

// Given a guest that has arrived, whose source is gone, and whose launcher does not let it go on.
// Then the migration ends, and the guest is where it is.
func TestAGuestWhoseLauncherDoesNotLetItGoOnHasMoved(t *testing.T) {
	t.Parallel()
	w := givenPods(t, something)
	w.sent(false)
	w.pods.deaf = "b"
	w.pods.receives = func(c net.Conn) error {
		_, err := io.Copy(io.Discard, c)
		w.mu.Lock()
		w.stays["b"] = hypervisor.StayPaused
		w.mu.Unlock()
		return err
	}
	w.start()
	w.eventually("the migration ends", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceGone && s.TargetState == kubevirt.TargetRunning && !slices.Contains(w.removed, "b")
	})
}

// Otherwise a launcher's numbers would put off each time-out.
func TestALaunchersProgressIsBoundedByWhatTheAgentKnows(t *testing.T) {
	n := New(Config{Log: slog.New(slog.DiscardHandler)})
	n.cfg.Allowed.Memory = 1 << 30
	m := &Migration{}
	s := newSide(n, m, false)
	s.sending = &sending{}
	s.sending.instance.UUID = hypervisor.LauncherPrefix + guestUUID
	s.passed.Add(1)
	if p := s.credible(hypervisor.Progress{Total: 1 << 63, Remaining: 1 << 63}); p.Total != 1<<30 || p.Remaining != 1<<30 {
		t.Errorf("%+v", p)
	}
	s.sending.total, s.sending.minRemaining = 1<<30, 1<<29
	if p := s.credible(hypervisor.Progress{Total: 1 << 30, Remaining: 7}); p.Remaining != 1<<29 {
		t.Errorf("it makes progress although nothing has passed: %+v", p)
	}
	s.passed.Add(1)
	if p := s.credible(hypervisor.Progress{Total: 1 << 30, Remaining: 7}); p.Remaining != 7 {
		t.Errorf("%+v", p)
	}
}

// Given a launcher directory that does not answer an agent that has just started. Then an Event
// names the node: nothing else ends the wait.
func TestALauncherDirectoryThatDoesNotAnswerIsReported(t *testing.T) {
	t.Parallel()
	w := givenPods(t, something)
	w.hangs = true
	w.m.Status.Phase, w.m.Status.MigrationState.DomainUUID = kubevirt.MigrationRunning, guestUUID
	h := host{w, "a"}
	n := New(Config{Node: "a", Cluster: h, Launcher: Kind{h, h}, Launchers: h, VMs: h, Open: w.open, Log: slog.New(slog.DiscardHandler)})
	s := newSide(n, w.m, false)
	s.undecidedSince = time.Now().Add(-undecidedTimeout)
	var wg sync.WaitGroup
	if s.sourceTurn(t.Context(), &wg) || !slices.Equal(w.paused, []string{reasonUndecided}) {
		t.Errorf("it is over, or reported so: %v", w.paused)
	}
	wg.Wait()
}

// Given a launcher that says nothing more after its guest's stream. Then the guest counts as incomplete,
// unless its arrival was reported: the source may have ended it by then.
func TestAGuestThatWasReportedAsArrivedIsNotRemovedForSilence(t *testing.T) {
	s := newSide(New(Config{Log: slog.New(slog.DiscardHandler)}), &Migration{}, true)
	s.received, s.relayEndedAt = true, time.Now().Add(-2*settleTimeout)
	i := grace.Instance{UUID: hypervisor.LauncherPrefix + targetPod, PID: 1}
	if here, _ := s.doubted(hypervisor.StayUnknown, i, "", &kubevirt.MigrationState{}); here != hypervisor.StayBusy {
		t.Errorf("not reported: %q", here)
	}
	s.report(kubevirt.TargetArrived)
	if here, _ := s.doubted(hypervisor.StayUnknown, i, "", &kubevirt.MigrationState{}); here != hypervisor.StayUnknown {
		t.Errorf("reported: %q", here)
	}
	// Once the source's side has said what became of it, the guest here is to go on, or to end.
	for _, source := range []string{kubevirt.SourceGone, kubevirt.SourceRunning} {
		if here, _ := s.doubted(hypervisor.StayUnknown, i, source, &kubevirt.MigrationState{}); here != hypervisor.StayPaused {
			t.Errorf("source %s: %q", source, here)
		}
	}
}

// Given a target whose launcher pod is exchanged for another of the same VM. Then what is in that one is
// not the guest that was sent, whatever its launcher says.
func TestAGuestInAnotherPodIsNotTheOneThatWasSent(t *testing.T) {
	for uid, want := range map[string]migration.Copy{targetPod: migration.CopyComplete, guestUUID: migration.CopyNone} {
		w := givenPods(t, something)
		w.m.Status.Phase, w.m.Status.MigrationState.DomainUUID = kubevirt.MigrationRunning, guestUUID
		w.stays["b"], w.uuids["b"] = hypervisor.StayPaused, uid
		h := host{w, "b"}
		s := newSide(New(Config{Node: "b", Cluster: h, Launcher: Kind{h, h}, Launchers: h, VMs: h, Identity: w.ca.node(t, "b"), Log: slog.New(slog.DiscardHandler)}), w.m, true)
		if f, _ := s.targetFacts(t.Context()); f.Copy != want || (f.Refused != "") != (want == migration.CopyNone) {
			t.Errorf("in pod %s: %s, refused %q, want %s", uid, f.Copy, f.Refused, want)
		}
	}
}

// Given a source's launcher that says nothing more of its guest. Then after its time the guest counts as
// sent if the launcher has said so, since the target may have it, and else as one that runs on.
func TestASilentSourceHasSentItsGuestIfItHasSaidSo(t *testing.T) {
	const unknown, left, runs = hypervisor.StayUnknown, hypervisor.StayLeft, hypervisor.StayRunning
	ended, now := make(chan struct{}), time.Now()
	close(ended)
	for name, c := range map[string]struct {
		x       sending
		libvirt bool
		phase   kubevirt.MigrationPhase
		here    hypervisor.Stay
		calling bool
		want    hypervisor.Stay
	}{
		"it was sent":                 {x: sending{returned: ended}, here: unknown, want: left},
		"it was not sent":             {x: sending{returned: ended, err: errFailed}, here: unknown, want: runs},
		"its agent has just started":  {phase: kubevirt.MigrationRunning, here: unknown, want: runs},
		"it is being sent":            {x: sending{returned: ended}, here: unknown, calling: true, want: unknown},
		"no migration has begun":      {here: unknown, want: unknown},
		"its QEMU has ended":          {x: sending{returned: ended, gone: true}, here: unknown, want: unknown},
		"it says that the guest runs": {x: sending{returned: ended}, here: runs, want: runs},
		"libvirt says nothing":        {x: sending{returned: ended}, libvirt: true, here: unknown, want: unknown},
		"its time is not over":        {x: sending{returned: ended, silent: now}, here: unknown, want: unknown},
	} {
		m := &Migration{}
		m.Status.Phase = c.phase
		s := newSide(New(Config{Log: slog.New(slog.DiscardHandler)}), m, false)
		x := c.x
		x.instance.UUID = hypervisor.LauncherPrefix + guestUUID
		if c.libvirt {
			x.instance.UUID = guestUUID
		}
		if x.silent.IsZero() {
			x.silent = now.Add(-settleTimeout)
		}
		s.sending = &x
		if got := s.presumed(m, c.here, c.calling); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Given a launcher that outlives its QEMU, which has ended while its migration's agent was away. Then the
// agent that starts again says so, by its record. Otherwise the guest would wait, paused.
func TestAnEndThatOnlyTheRecordShowsIsReported(t *testing.T) {
	t.Parallel()
	w := givenPods(t, something)
	w.hangs, w.dirs["a"] = true, t.TempDir()
	w.m.Status.Phase, w.m.Status.MigrationState.DomainUUID = kubevirt.MigrationRunning, guestUUID
	w.former = grace.Instance{UUID: hypervisor.LauncherPrefix + guestUUID, PID: 1, Start: 1}
	if err := os.WriteFile(filepath.Join(w.dirs["a"], "left-m-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.qemu.end()
	w.start()
	w.eventually("the end is reported", func() bool { return w.m.Status.MigrationState.SourceState == kubevirt.SourceGone })
}

// Given an agent that was killed after it had reported that a guest has left, and before the guest's
// record showed it. Then the agent that starts again tells the guest's keeper, and the migration
// counts until the record shows it. Otherwise the launcher would hear that its guest has just stopped.
func TestARecordThatWasNotToldOfAMoveIsTold(t *testing.T) {
	t.Parallel()
	w := givenPods(t, something)
	s := w.m.Status.MigrationState
	w.m.Status.Phase, s.DomainUUID = kubevirt.MigrationRunning, guestUUID
	s.SourceState, s.TargetState = kubevirt.SourceGone, kubevirt.TargetRunning
	w.stays["a"], w.stays["b"] = hypervisor.StayUnknown, hypervisor.StayRunning
	w.qemu.end()
	w.start()
	w.eventually("the keeper is told", func() bool {
		told := w.told.Load()
		return told != nil && *told == hypervisor.LauncherPrefix+guestUUID
	})
	w.looked("a")
	if is, _ := w.nodes["a"].MigrationOf("ns_vm"); is != grace.MigrationOutgoing {
		t.Errorf("its migration is %v", is)
	}
	w.mu.Lock()
	w.phase = ""
	w.mu.Unlock()
	w.looked("a")
	w.looked("a")
	if is, _ := w.nodes["a"].MigrationOf("ns_vm"); is != grace.MigrationNone {
		t.Errorf("its migration is still %v", is)
	}
}
