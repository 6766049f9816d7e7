//go:build !unit

package logind

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/internal/node/agent"
)

// testTimeout bounds waits for what happens at once.
const testTimeout = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// startBus runs a real dbus-daemon; stop ends it.
func startBus(t *testing.T, socket string) (stop func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bus.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(socket)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "dbus-daemon", "--config-file="+file, "--nofork", "--print-address")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err, "; make deps installs it")
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// fakeLogind is the part of org.freedesktop.login1 that is needed. Its bus is real.
type fakeLogind struct {
	t    *testing.T
	conn *dbus.Conn

	mu        sync.Mutex
	preparing bool
	delay     uint64
	asked     []string
	inhibitor []*os.File // our ends: each reads its end of file when the other is closed
	theirs    []*os.File // what was given away, until it arrived
	refuses   bool
	slow      chan struct{} // closed: it goes on
}

func startLogind(t *testing.T, socket string, delay time.Duration) *fakeLogind {
	t.Helper()
	conn, err := dbus.Connect("unix:path=" + socket)
	if err != nil {
		t.Fatal(err)
	}
	l := &fakeLogind{t: t, conn: conn, delay: uint64(delay / time.Microsecond)}
	for iface, methods := range map[string]map[string]any{
		manager:                           {"Inhibit": l.inhibit},
		"org.freedesktop.DBus.Properties": {"Get": l.get},
	} {
		if err := conn.ExportMethodTable(methods, path, iface); err != nil {
			t.Fatal(err)
		}
	}
	obeys := func(_, _ string, _ int32) *dbus.Error { return nil } // but logind reads nothing again
	if err := conn.ExportMethodTable(map[string]any{"KillUnit": obeys}, "/org/freedesktop/systemd1", systemd+".Manager"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(systemd, dbus.NameFlagReplaceExisting); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(name, dbus.NameFlagReplaceExisting); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.stop)
	return l
}

func (l *fakeLogind) stop() { _ = l.conn.Close() }

func (l *fakeLogind) inhibit(what, _, _, mode string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	slow := l.slow
	l.mu.Unlock()
	if slow != nil {
		<-slow
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.preparing || l.refuses {
		return 0, dbus.MakeFailedError(fmt.Errorf("the operation inhibition has been requested for is already running"))
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.asked = append(l.asked, what+" "+mode)
	l.inhibitor = append(l.inhibitor, ours)
	l.theirs = append(l.theirs, theirs)
	return dbus.UnixFD(theirs.Fd()), nil
}

func (l *fakeLogind) get(_, property string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if property == "PreparingForShutdown" {
		return dbus.MakeVariant(l.preparing), nil
	}
	return dbus.MakeVariant(l.delay), nil
}

func (l *fakeLogind) prepare(yes bool) {
	l.mu.Lock()
	l.preparing = yes
	l.mu.Unlock()
	if err := l.conn.Emit(path, manager+".PrepareForShutdown", yes); err != nil {
		l.t.Error(err)
	}
}

// scheduled says that ScheduledShutdown has changed, the one signal of systemd 257 for a shutdown
// that is called off by hand.
func (l *fakeLogind) scheduled(preparing bool) {
	l.set(func() { l.preparing = preparing })
	changed := map[string]dbus.Variant{"ScheduledShutdown": dbus.MakeVariant([]any{"", ^uint64(0)})}
	if err := l.conn.Emit(path, properties+".PropertiesChanged", manager, changed, []string{}); err != nil {
		l.t.Error(err)
	}
}

func (l *fakeLogind) set(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

func (l *fakeLogind) given() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked)
}

// ours returns our end of an inhibitor that has arrived.
func (l *fakeLogind) ours(n int) *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.theirs[n].Close()
	return l.inhibitor[n]
}

// ended waits until an inhibitor is closed everywhere.
func (l *fakeLogind) ended(n int) bool {
	f := l.ours(n)
	_ = f.SetReadDeadline(time.Now().Add(testTimeout))
	_, err := f.Read(make([]byte, 1))
	return err != nil && !os.IsTimeout(err)
}

// held reports whether an inhibitor is still open.
func (l *fakeLogind) held(n int) bool {
	f := l.ours(n)
	_ = f.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	_, err := f.Read(make([]byte, 1))
	return os.IsTimeout(err)
}

type watched struct {
	*Logind
	t     *testing.T
	told  chan agent.NodeState
	stop  func()
	lines *strings.Builder
}

func watch(t *testing.T, l *Logind) *watched {
	t.Helper()
	w := &watched{Logind: l, t: t, told: make(chan agent.NodeState, 100), lines: &strings.Builder{}}
	l.Log = slog.New(slog.NewTextHandler(w.lines, nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Watch(ctx, func(s agent.NodeState) { w.told <- s })
	}()
	w.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(w.stop)
	return w
}

// until waits for a state.
func (w *watched) until(what string, want func(agent.NodeState) bool) agent.NodeState {
	w.t.Helper()
	late := time.After(testTimeout)
	for {
		select {
		case s := <-w.told:
			if want(s) {
				return s
			}
		case <-late:
			w.t.Fatal("not told: ", what)
		}
	}
}

// next waits for the next report.
func (w *watched) next() agent.NodeState {
	w.t.Helper()
	return w.until("the next report", func(agent.NodeState) bool { return true })
}

func known(s agent.NodeState) bool   { return s.Known && s.Held && !s.ShuttingDown }
func down(s agent.NodeState) bool    { return s.Known && s.ShuttingDown }
func unknown(s agent.NodeState) bool { return !s.Known }

func delayed(by time.Duration) func(agent.NodeState) bool {
	return func(s agent.NodeState) bool { return known(s) && s.Delay == by }
}

func TestAnInhibitorIsHeldUntilTheVMsAreGone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	defer startBus(t, socket)()
	fake := startLogind(t, socket, 90*time.Second)
	w := watch(t, &Logind{Socket: socket})
	if s := w.until("held", known); s.Delay != 90*time.Second {
		t.Errorf("%+v", s)
	}
	fake.set(func() {
		if fake.asked[0] != "shutdown delay" {
			t.Errorf("asked for %q", fake.asked)
		}
	})
	fake.prepare(true)
	if s := w.until("shutdown", down); !s.Held {
		t.Errorf("%+v", s)
	}
	if !fake.held(0) {
		t.Fatal("the inhibitor was let go before the VMs were gone")
	}
	w.Release()
	if !fake.ended(0) {
		t.Error("the inhibitor is still held")
	}
	// Cancelled: an inhibitor is held.
	fake.prepare(false)
	w.until("called off", known)
	if fake.given() != 2 || !fake.held(1) {
		t.Error("no inhibitor is held for the next shutdown")
	}
	w.stop()
	if !fake.ended(1) {
		t.Error("an agent that ends keeps the inhibitor")
	}
}

// Given a shutdown that logind has announced, when it is called off by hand, then it counts as such
// only once logind says so, with whatever signal, and the next one is delayed again.
func TestAShutdownThatIsCalledOffByHand(t *testing.T) {
	for name, off := range map[string]func(*fakeLogind){
		"as systemd 257 says it": func(l *fakeLogind) { l.scheduled(false) },
		"without a signal":       func(l *fakeLogind) { l.set(func() { l.preparing = false }) },
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "bus")
			defer startBus(t, socket)()
			fake := startLogind(t, socket, time.Minute)
			l := &Logind{Socket: socket, retry: time.Hour}
			if name == "without a signal" {
				l.retry = 10 * time.Millisecond
			}
			w := watch(t, l)
			w.until("held", known)
			fake.prepare(true)
			w.until("shutdown", down)
			fake.scheduled(true) // as of systemd 252, which reboots all the same
			if s := w.next(); !down(s) {
				t.Errorf("%+v, and logind still prepares for it", s)
			}
			w.Release()
			off(fake)
			w.until("called off", known)
			if fake.given() != 2 || !fake.held(1) {
				t.Error("no inhibitor is held for the next shutdown")
			}
		})
	}
}

func TestAnAgentThatStartsInTheMiddleHearsOfIt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	defer startBus(t, socket)()
	fake := startLogind(t, socket, 90*time.Second)
	fake.set(func() { fake.preparing = true })
	w := watch(t, &Logind{Socket: socket})
	if s := w.until("shutdown", down); s.Held || s.Delay != 90*time.Second {
		t.Errorf("%+v", s)
	}
}

func TestLogindAndTheBusMayComeAndGo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	// Without a bus, then without logind, it is logged and tried again.
	w := watch(t, &Logind{Socket: socket, retry: 100 * time.Millisecond})
	w.until("no bus", unknown)
	stop := startBus(t, socket)
	defer stop()
	w.until("no logind", unknown)
	first := startLogind(t, socket, time.Minute)
	w.until("logind has come", known)
	// A logind that restarts: the new inhibitor is taken before the old one is closed.
	first.stop()
	w.until("logind has gone", unknown)
	second := startLogind(t, socket, time.Minute)
	w.until("logind is back", known)
	if second.given() != 1 || !first.ended(0) {
		t.Error("not taken again")
	}
	// The bus restarts.
	stop()
	w.until("the bus has gone", unknown)
	if !second.held(0) {
		t.Error("the inhibitor was let go with the bus")
	}
	defer startBus(t, socket)()
	third := startLogind(t, socket, time.Minute)
	w.until("all is back", known)
	if third.given() != 1 || !second.ended(0) {
		t.Error("not taken again")
	}
}

// Only the bound on a session's first calls ends this wait.
func TestABusThatSaysNothingIsLeft(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := watch(t, &Logind{Socket: socket})
	w.until("a bus that says nothing", unknown)
	w.stop()
	if !strings.Contains(w.lines.String(), "the system bus "+socket+": it takes connections and does not answer") {
		t.Error("not said:", w.lines)
	}
}

func TestAnInhibitorThatWasRefusedIsAskedForAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	defer startBus(t, socket)()
	fake := startLogind(t, socket, time.Minute)
	fake.set(func() { fake.refuses = true })
	w := watch(t, &Logind{Socket: socket, retry: 10 * time.Millisecond})
	w.until("none is given", func(s agent.NodeState) bool { return s.Known && !s.Held })
	fake.set(func() { fake.refuses = false })
	w.until("held", known)
	w.stop()
	if n := strings.Count(w.lines.String(), "logind gives no inhibitor"); n != 1 {
		t.Errorf("said %d times: %s", n, w.lines)
	}
}

// If left open, it would delay the next shutdown for all of logind's time.
func TestAnInhibitorThatComesTooLateIsClosed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	defer startBus(t, socket)()
	fake := startLogind(t, socket, time.Minute)
	slow := make(chan struct{})
	fake.mu.Lock()
	fake.slow = slow
	fake.mu.Unlock()
	conn, err := dbus.Connect("unix:path=" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	b := bus{conn: conn}
	if f, err := b.inhibit(ctx); err == nil {
		t.Fatalf("%v in spite of a logind that does not answer", f)
	}
	close(slow)
	for fake.given() == 0 && t.Context().Err() == nil {
		if _, err := b.state(t.Context()); err != nil { // so the answer is on its way
			t.Fatal(err)
		}
	}
	for range 10 {
		if _, err := b.state(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !fake.ended(0) {
		t.Error("it is still open")
	}
}

func TestOnlyLogindIsBelieved(t *testing.T) {
	scheduled := func(property string) []any { return []any{manager, map[string]dbus.Variant{}, []string{property}} }
	b := bus{owner: ":1.7"}
	for _, c := range []struct {
		s    dbus.Signal
		mean bool
	}{
		{dbus.Signal{Sender: ":1.7", Path: path, Name: manager + ".PrepareForShutdown"}, true},
		{dbus.Signal{Sender: ":1.9", Path: path, Name: manager + ".PrepareForShutdown"}, false},
		{dbus.Signal{Sender: ":1.9", Path: "/", Name: busName + ".NameOwnerChanged"}, false},
		{dbus.Signal{Sender: busName, Path: "/", Name: busName + ".NameOwnerChanged"}, true},
		{dbus.Signal{Sender: ":1.7", Path: path, Name: manager + ".SessionNew"}, false},
		{dbus.Signal{Sender: ":1.7", Path: path, Name: properties + ".PropertiesChanged", Body: scheduled("ScheduledShutdown")}, true},
		{dbus.Signal{Sender: ":1.9", Path: path, Name: properties + ".PropertiesChanged", Body: scheduled("ScheduledShutdown")}, false},
		// A new inhibitor changes it: a look takes one, and must not follow from it.
		{dbus.Signal{Sender: ":1.7", Path: path, Name: properties + ".PropertiesChanged", Body: scheduled("DelayInhibited")}, false},
	} {
		if b.trusted(&c.s) != c.mean {
			t.Errorf("%+v: %v", c.s, !c.mean)
		}
	}
}
