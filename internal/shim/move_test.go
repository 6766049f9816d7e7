package shim

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// moving is a mover with its launcher directory, in the place of the shim's loop.
type moving struct {
	*mover
	t    *testing.T
	dir  string
	qemu *fakeQEMU
	n    uint64
}

func newMoving(t *testing.T, config Config, qemu *fakeQEMU) *moving {
	t.Helper()
	dir := t.TempDir()
	if config.Ask == (Ask{}) {
		config.Ask.QMP = qemu.path
	}
	sender := signals.NewSender(dir, signals.VM{Namespace: "ns", Name: "vm", UID: "u-1", Asking: signals.Asking{Asks: signals.AsksLauncher}})
	m := &moving{mover: newMover(config, sender), t: t, dir: dir, qemu: qemu}
	kit.Must(t, sender.Register())
	t.Cleanup(func() {
		m.close()
		kit.Must(t, sender.Withdraw())
	})
	return m
}

// able starts the mover of a guest and waits until the monitor has answered.
func able(t *testing.T, guest string) *moving {
	t.Helper()
	m := newMoving(t, Config{}, newFakeQEMU(t, guest))
	m.found()
	m.until("it can be moved", func(v signals.Moving) bool { return v.Able == signals.AbleOK })
	return m
}

// says is what vm.json says.
func (m *moving) says() signals.Moving {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.dir, signals.FileVM))
	kit.Must(m.t, err)
	vm, err := signals.ParseVM(content)
	kit.Must(m.t, err)
	return vm.Migration
}

// until runs the mover until vm.json says what is.
func (m *moving) until(what string, is func(signals.Moving) bool) signals.Moving {
	m.t.Helper()
	for !is(m.says()) {
		m.step(what)
		kit.Must(m.t, m.look())
	}
	return m.says()
}

// step takes the next event, and reports whether it was a worker's answer.
func (m *moving) step(what string) bool {
	m.t.Helper()
	select {
	case a := <-m.answers:
		kit.Must(m.t, m.done(a))
		return true
	case <-m.timer.C:
		m.wake()
	case <-time.After(30 * time.Second):
		m.t.Fatalf("%s: not after 30 s; vm.json says %+v", what, m.says())
	}
	return false
}

// looksAt takes the answer of the next look.
func (m *moving) looksAt(what string) {
	m.t.Helper()
	for !m.step(what) {
	}
}

// asks makes a request as the agent does, and returns what vm.json says with the answer.
func (m *moving) asks(r grace.MoveRequest) signals.Moving {
	m.t.Helper()
	m.writes(r)
	kit.Must(m.t, m.look())
	return m.until("an answer to "+string(r.Do), func(v signals.Moving) bool { return v.Requested == m.n })
}

func (m *moving) writes(r grace.MoveRequest) {
	m.t.Helper()
	m.n++
	r.Request = m.n
	kit.Must(m.t, os.WriteFile(filepath.Join(m.dir, signals.FileStatus), signals.EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Running, Migration: r}), 0o600))
}

func (m *moving) wantOK(do grace.Move) signals.Moving {
	m.t.Helper()
	v := m.asks(grace.MoveRequest{Do: do})
	if v.Result != signals.ResultOK {
		m.t.Fatalf("%s: %q", do, v.Result)
	}
	return v
}

func (m *moving) becomes(want signals.MoveState) signals.Moving {
	m.t.Helper()
	return m.until(string(want), func(v signals.Moving) bool { return v.State == want })
}

// agent makes the agent's socket, and returns the connection that it gets.
func (m *moving) agent() <-chan net.Conn {
	m.t.Helper()
	l, err := net.Listen("unix", filepath.Join(m.dir, signals.FileMigration))
	kit.Must(m.t, err)
	conns := make(chan net.Conn, 1)
	go func() {
		defer close(conns)
		if conn, err := l.Accept(); err == nil {
			conns <- conn
		}
	}()
	m.t.Cleanup(func() {
		l.Close()
		for conn := range conns {
			conn.Close()
		}
	})
	return conns
}

// sending is a guest that is being sent.
func sending(t *testing.T) *moving {
	t.Helper()
	m := able(t, "running")
	m.agent()
	m.wantOK(grace.MoveMigrate)
	m.becomes(signals.StateActive)
	return m
}

func TestAGuestIsSent(t *testing.T) {
	// Given
	m := able(t, "running")
	conns := m.agent()
	// When
	v := m.asks(grace.MoveRequest{Do: grace.MoveMigrate, Bandwidth: 5, AutoConverge: true})
	// Then QEMU was told so, in one connection, and has the agent's socket.
	want := []string{
		`migrate-set-capabilities{"capabilities":[{"capability":"auto-converge","state":true}]}`,
		`migrate-set-parameters{"max-bandwidth":5242880}`, `getfd{"fdname":"vmgrace"}`, `migrate{"uri":"fd:vmgrace"}`,
	}
	if got := m.qemu.did(); v.Result != signals.ResultOK || !slices.Equal(got, want) {
		t.Fatalf("%+v after %q", v, got)
	}
	agent := <-conns
	defer agent.Close()
	_, err := m.qemu.sockets[0].WriteString("x")
	kit.Must(t, err)
	buffer := make([]byte, 1)
	_, err = agent.Read(buffer)
	kit.Must(t, err)
	// And the shim holds it no longer.
	kit.Must(t, m.qemu.sockets[0].Close())
	if _, err := agent.Read(buffer); err == nil {
		t.Error("the socket is still open")
	}
	// When it is sent, then vm.json follows.
	m.qemu.becomes("running", map[string]any{"status": "active", "ram": map[string]any{"total": 100, "remaining": 40}})
	m.until("the progress", func(v signals.Moving) bool {
		return v.State == signals.StateActive && v.Total == 100 && v.Remaining == 40
	})
	m.qemu.becomes(finishMigrate, map[string]any{"status": "completed"})
	if v := m.until("the guest is held", func(v signals.Moving) bool { return v.Guest == finishMigrate }); v.State != signals.StateActive {
		t.Errorf("before QEMU is done: %+v", v)
	}
	m.qemu.becomes("postmigrate", map[string]any{"status": "completed", "downtime": 12})
	if v := m.becomes(signals.StateCompleted); v.Downtime != 12 || v.Guest != "postmigrate" || !m.away() {
		t.Errorf("%+v", v)
	}
	// When no other QEMU has it, then it goes on here.
	m.wantOK(grace.MoveCont)
	if m.becomes(signals.StateRunning); m.away() {
		t.Error("it counts as away")
	}
}

func TestNoLimitOfTheBandwidthIsLibvirts(t *testing.T) {
	for bandwidth, want := range map[uint64]string{0: "9223372036853727232", 1: "1048576", 1 << 60: "9223372036853727232"} {
		m := able(t, "running")
		m.agent()
		m.asks(grace.MoveRequest{Do: grace.MoveMigrate, Bandwidth: bandwidth})
		if got := m.qemu.did(); got[1] != `migrate-set-parameters{"max-bandwidth":`+want+`}` {
			t.Errorf("%d MiB/s: %q", bandwidth, got)
		}
	}
}

func TestAMigrationThatEndsDuringALookHasNotFailed(t *testing.T) {
	m := sending(t)
	m.qemu.mu.Lock()
	m.qemu.midway = func() { m.qemu.guest, m.qemu.migration = postMigrate, map[string]any{"status": "completed"} }
	m.qemu.mu.Unlock()
	m.until("the end", func(v signals.Moving) bool { return v.State != signals.StateActive })
	if v := m.says(); v.State != signals.StateCompleted {
		t.Errorf("%+v", v)
	}
}

func TestAMigrationThatFailsSaysWhyAndTheGuestRunsOn(t *testing.T) {
	m := sending(t)
	m.qemu.becomes("running", map[string]any{"status": "failed", "error-desc": "Unable to write to socket: Broken pipe"})
	if v := m.becomes(signals.StateFailed); v.Reason != "Unable to write to socket: Broken pipe" || v.Guest != signals.GuestRunning {
		t.Errorf("%+v", v)
	}
	if got := m.qemu.did(); slices.Contains(got, "cont") {
		t.Errorf("after %q", got)
	}
	// And it can be sent again.
	kit.Must(t, os.Remove(filepath.Join(m.dir, signals.FileMigration)))
	m.agent()
	if v := m.wantOK(grace.MoveMigrate); v.Reason != "" {
		t.Errorf("%+v", v)
	}
}

func TestAMigrationIsCancelled(t *testing.T) {
	m := sending(t)
	m.wantOK(grace.MoveCancel)
	if v := m.becomes(signals.StateCancelled); v.Guest != signals.GuestRunning {
		t.Errorf("%+v", v)
	}
}

func TestAGuestThatTheShimPausedGoesOnAfterAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		guest string // when it has failed
		fail  func(*moving)
	}{
		"cut":                       {"paused", func(m *moving) { m.qemu.becomes("paused", map[string]any{"status": "failed"}) }},
		"cut when it was sent":      {"postmigrate", func(m *moving) { m.qemu.becomes("postmigrate", map[string]any{"status": "failed"}) }},
		"cut, and still being held": {"", func(m *moving) { m.qemu.becomes("finish-migrate", map[string]any{"status": "failed"}) }},
		"cancelled":                 {"paused", func(m *moving) { m.wantOK(grace.MoveCancel) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := sending(t)
			m.wantOK(grace.MovePause)
			m.becomes(signals.StatePaused)
			if got := m.qemu.did(); got[len(got)-1] != "stop" {
				t.Fatalf("after %q", got)
			}
			c.fail(m)
			if c.guest == "" {
				m.until("the guest is held", func(v signals.Moving) bool { return v.Guest == finishMigrate })
				m.qemu.becomes("postmigrate", map[string]any{"status": "failed"})
			}
			m.until("the end", func(v signals.Moving) bool {
				return v.State == signals.StateFailed || v.State == signals.StateCancelled
			})
			if v := m.says(); v.Guest != signals.GuestRunning || !slices.Contains(m.qemu.did(), "cont") {
				t.Errorf("%+v after %q", v, m.qemu.did())
			}
		})
	}
}

func TestAGuestThatItsUserHadPausedStaysPaused(t *testing.T) {
	m := able(t, "paused")
	m.agent()
	m.wantOK(grace.MoveMigrate)
	m.wantOK(grace.MovePause)
	// QEMU's word for a paused guest that it has nearly sent.
	m.qemu.becomes("postmigrate", map[string]any{"status": "failed"})
	if v := m.becomes(signals.StateFailed); v.Guest != signals.GuestPaused {
		t.Errorf("%+v", v)
	}
	if got := m.qemu.did(); slices.Contains(got, "cont") || slices.Contains(got, "stop") {
		t.Errorf("after %q", got)
	}
	// A request to shut down resumes it all the same: that guest is nowhere else.
	if off, err := powerdown(t.Context(), m.qemu.path, askDeadline()); off != "" || err != nil {
		t.Errorf("%q, %v", off, err)
	}
	if got := m.qemu.did(); !slices.Equal(got[len(got)-2:], []string{"cont", "system_powerdown"}) {
		t.Errorf("after %q", got)
	}
}

func TestAGuestThatWasSentIsNotResumedToShutItDown(t *testing.T) {
	m := sending(t)
	m.qemu.becomes("postmigrate", map[string]any{"status": "completed"})
	m.becomes(signals.StateCompleted)
	if _, err := powerdown(t.Context(), m.qemu.path, askDeadline()); err == nil || slices.Contains(m.qemu.did(), "cont") {
		t.Errorf("%v, after %q", err, m.qemu.did())
	}
}

func TestAGuestArrives(t *testing.T) {
	m := able(t, "inmigrate")
	m.agent()
	// Given that it has not arrived, QEMU would let it run as soon as it has.
	if v := m.asks(grace.MoveRequest{Do: grace.MoveCont}); v.Result != "the guest has not arrived" {
		t.Errorf("%+v", v)
	}
	m.wantOK(grace.MoveIncoming)
	if v := m.asks(grace.MoveRequest{Do: grace.MoveIncoming}); v.Result != "a migration is under way" {
		t.Errorf("again: %+v", v)
	}
	m.becomes(signals.StateActive)
	if got, want := m.qemu.did(), []string{`getfd{"fdname":"vmgrace"}`, `migrate-incoming{"uri":"fd:vmgrace"}`}; !slices.Equal(got, want) {
		t.Errorf("after %q", got)
	}
	m.qemu.becomes("paused", map[string]any{"status": "completed"})
	m.becomes(signals.StateArrived)
	m.wantOK(grace.MoveCont)
	if v := m.becomes(signals.StateRunning); v.Guest != signals.GuestRunning {
		t.Errorf("%+v", v)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		guest  string
		r      grace.Move
		socket func(*moving)
		qemu   [2]string // what it refuses, and why
		want   string
	}{
		"of a later agent":         {guest: "running", r: "fly", want: `this shim cannot "fly"`},
		"nothing to pause":         {guest: "running", r: grace.MovePause, want: "no migration is under way"},
		"no socket":                {guest: "running", r: grace.MoveMigrate, socket: func(*moving) {}, want: "no such file"},
		"a file":                   {guest: "running", r: grace.MoveMigrate, socket: func(m *moving) { kit.Write(m.t, filepath.Join(m.dir, signals.FileMigration), "") }, want: "no socket"},
		"a link to another socket": {guest: "running", r: grace.MoveMigrate, socket: func(m *moving) { kit.Must(m.t, os.Symlink(m.qemu.path, filepath.Join(m.dir, signals.FileMigration))) }, want: "no socket"},
		"nobody is waited for":     {guest: "running", r: grace.MoveIncoming, want: `QEMU does not wait for a guest: it is "running"`},
		"QEMU cannot":              {guest: "running", r: grace.MoveMigrate, qemu: [2]string{"migrate", "State blocked by non-migratable device"}, want: "non-migratable device"},
		"QEMU has no such word":    {guest: "running", r: grace.MoveMigrate, qemu: [2]string{"migrate-set-capabilities", "Invalid parameter"}, want: "Invalid parameter"},
		"QEMU cannot receive":      {guest: "inmigrate", r: grace.MoveIncoming, qemu: [2]string{"migrate-incoming", "once"}, want: "once"},
	} {
		t.Run(name, func(t *testing.T) {
			m := able(t, c.guest)
			before := m.says()
			if c.socket == nil {
				m.agent()
			} else {
				c.socket(m)
			}
			m.qemu.refuse(c.qemu[0], c.qemu[1])
			v := m.asks(grace.MoveRequest{Do: c.r})
			if !strings.Contains(v.Result, c.want) {
				t.Errorf("%+v", v)
			}
			v.Requested, v.Result = 0, ""
			if v != before || m.way != nowhere {
				t.Errorf("it says %+v, before %+v", v, before)
			}
		})
	}
}

// Given a guest that has arrived, and that QEMU refuses to send on. Then its launcher says that it runs,
// as before. Otherwise it would count as a QEMU that waits for a guest.
func TestAGuestThatHasArrivedAndIsNotSentOnRunsStill(t *testing.T) {
	m := newMoving(t, Config{Incoming: true}, newFakeQEMU(t, "inmigrate"))
	m.found()
	m.agent()
	m.wantOK(grace.MoveIncoming)
	m.qemu.becomes("paused", map[string]any{"status": "completed"})
	m.becomes(signals.StateArrived)
	m.wantOK(grace.MoveCont)
	before := m.becomes(signals.StateRunning)
	m.qemu.refuse("migrate", "State blocked by non-migratable device")
	v := m.asks(grace.MoveRequest{Do: grace.MoveMigrate})
	if !strings.Contains(v.Result, "non-migratable device") {
		t.Errorf("%+v", v)
	}
	if v.Requested, v.Result = before.Requested, before.Result; v != before {
		t.Errorf("it says %+v, before %+v", v, before)
	}
}

func TestEachRequestIsCarriedOutOnce(t *testing.T) {
	m := sending(t)
	m.wantOK(grace.MovePause)
	m.n--
	m.asks(grace.MoveRequest{Do: grace.MovePause})
	if got := m.qemu.did(); len(got) != 5 {
		t.Errorf("%q", got)
	}
}

func TestAMigrationWithoutAnAnswerIsFollowed(t *testing.T) {
	// Given a QEMU that begins, and says so to nobody.
	m := able(t, "running")
	m.agent()
	m.qemu.hang("migrate")
	m.qemu.becomes("running", map[string]any{"status": "active"})
	v := m.asks(grace.MoveRequest{Do: grace.MoveMigrate})
	if !strings.Contains(v.Result, "no answer in time") {
		t.Errorf("%+v", v)
	}
	m.becomes(signals.StateActive)
	m.wantOK(grace.MoveCancel)
	m.becomes(signals.StateCancelled)
}

func TestAMonitorThatIsSilentForAWhileLosesNoMigration(t *testing.T) {
	m := sending(t)
	kit.Must(t, os.Rename(m.qemu.path, m.qemu.path+".away"))
	for range 3 {
		m.looksAt("a monitor that is not there")
	}
	kit.Must(t, os.Rename(m.qemu.path+".away", m.qemu.path))
	m.qemu.becomes("postmigrate", map[string]any{"status": "completed"})
	m.becomes(signals.StateCompleted)
}

func TestARequestToShutDownIsAnsweredWhileAGuestIsSent(t *testing.T) {
	m := sending(t)
	m.isShutDown()
}

func TestARequestToShutDownOutlivesAMigrationsThatHangs(t *testing.T) {
	m := able(t, "running")
	m.agent()
	m.qemu.hang("migrate")
	m.writes(grace.MoveRequest{Do: grace.MoveMigrate})
	kit.Must(t, m.look())
	kit.Eventually(t, "QEMU hangs", func() bool { return len(m.qemu.did()) == 4 })
	m.isShutDown()
}

// isShutDown presses the power button, and runs the mover until there is an answer.
func (m *moving) isShutDown() {
	m.t.Helper()
	result := make(chan error, 1)
	p := request(Ask{QMP: m.qemu.path}, grace.ModeACPI, askDeadline(), result)
	defer p.close()
	var err error
	m.until("the answer", func(signals.Moving) bool {
		select {
		case err = <-result:
			return true
		default:
			return false
		}
	})
	if err != nil || !slices.Contains(m.qemu.did(), "system_powerdown") {
		m.t.Errorf("%v, after %q", err, m.qemu.did())
	}
}

func TestProgressAloneIsNotWrittenAtEachLook(t *testing.T) {
	m := sending(t)
	writes, before := 0, m.says()
	for n := range 20 {
		m.qemu.becomes("running", map[string]any{"status": "active", "ram": map[string]any{"total": 100, "remaining": 100 - n}})
		m.looksAt("the progress")
		if now := m.says(); now != before {
			writes, before = writes+1, now
		}
	}
	if writes == 0 || writes > 20/progressLooks {
		t.Errorf("%d writes in 20 looks", writes)
	}
}

func TestAMoverThatIsClosedLeavesNothing(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("", func(t *testing.T) {
		m := able(t, "running")
		m.agent()
		m.qemu.hang("migrate")
		m.writes(grace.MoveRequest{Do: grace.MoveMigrate})
		kit.Must(t, m.look())
	})
	goleak.VerifyNone(t, before)
}
