//go:build !unit

package logind

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/test/logind"
)

// manager1 is the part of systemd's manager that is needed. Like the real one it sends
// signals only to subscribers.
type manager1 struct {
	t    *testing.T
	conn *dbus.Conn

	mu         sync.Mutex
	state      string
	subscribed chan struct{}
	hangs      chan struct{} // no answers until it is closed; nil: it answers
}

func startManager(t *testing.T, socket, state string) *manager1 {
	t.Helper()
	conn, err := dbus.Connect("unix:path=" + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	m := &manager1{t: t, conn: conn, state: state, subscribed: make(chan struct{}, 8)}
	for iface, methods := range map[string]map[string]any{
		systemdManager: {"Subscribe": func() *dbus.Error { m.subscribed <- struct{}{}; return nil }},
		properties:     {"Get": m.get},
	} {
		if err := conn.ExportMethodTable(methods, systemdPath, iface); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.RequestName(systemd, dbus.NameFlagReplaceExisting); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *manager1) get(_, property string) (dbus.Variant, *dbus.Error) {
	m.mu.Lock()
	state, hangs := m.state, m.hangs
	m.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	if property == "DefaultTimeoutStopUSec" {
		return dbus.MakeVariant(uint64(45_000_000)), nil
	}
	return dbus.MakeVariant(state), nil
}

func (m *manager1) is(state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = state
}

// job sends a signal about a unit's job.
func (m *manager1) job(member, unit string, more ...any) {
	if err := m.conn.Emit(systemdPath, systemdManager+"."+member, append([]any{uint32(7), dbus.ObjectPath("/job/7"), unit}, more...)...); err != nil {
		m.t.Error(err)
	}
}

func TestAShutdownThatPassesByLogindIsHeardOfFromSystemd(t *testing.T) {
	m := logind.Start(t, 5*time.Second)
	systemd := startManager(t, m.Socket, "running")
	w := watch(t, &Logind{Socket: m.Socket})
	w.until("held", known)
	<-systemd.subscribed
	systemd.is("stopping")
	systemd.job("JobNew", "shutdown.target")
	if s := w.until("shutdown", down); s.Delay != 45*time.Second || !s.AtOnce {
		t.Errorf("%+v, want the time that systemd gives a unit", s)
	}
	// Cancelled: an inhibitor is held.
	systemd.is("running")
	systemd.job("JobRemoved", "shutdown.target", "canceled")
	w.until("called off", known)
}

func TestASystemdThatIsStoppingAtTheAgentsStart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	defer startBus(t, socket)() // and no logind
	startManager(t, socket, "stopping")
	w := watch(t, &Logind{Socket: socket})
	w.until("shutdown", down)
}

// The job is proof enough: a manager that stops may have no time for questions.
func TestASystemdThatStopsAndDoesNotAnswer(t *testing.T) {
	m := logind.Start(t, 5*time.Second)
	systemd := startManager(t, m.Socket, "running")
	w := watch(t, &Logind{Socket: m.Socket})
	w.until("held", known)
	<-systemd.subscribed
	hangs := make(chan struct{})
	defer close(hangs)
	systemd.mu.Lock()
	systemd.hangs = hangs
	systemd.mu.Unlock()
	systemd.job("JobNew", "reboot.target")
	if s := w.until("shutdown", down); s.Delay != 45*time.Second {
		t.Errorf("%+v: it was asked when it had no time", s)
	}
}

// logind waits for the inhibitor, so its time counts.
func TestAShutdownOfLogindsKeepsItsTime(t *testing.T) {
	m := logind.Start(t, time.Minute)
	systemd := startManager(t, m.Socket, "running")
	w := watch(t, &Logind{Socket: m.Socket})
	w.until("held", known)
	<-systemd.subscribed
	m.Shutdown(t, "Reboot")
	if s := w.until("shutdown", down); s.AtOnce {
		t.Errorf("%+v", s)
	}
	systemd.is("stopping")
	systemd.job("JobNew", "shutdown.target")
	if s := w.until("still", down); s.Delay != time.Minute || !s.Held || !s.AtOnce {
		t.Errorf("%+v", s)
	}
}

func TestOnlySystemdsStopJobsAreBelieved(t *testing.T) {
	job := func(sender, name, unit string) *dbus.Signal {
		return &dbus.Signal{Sender: sender, Path: systemdPath, Name: name, Body: []any{uint32(1), dbus.ObjectPath("/job/1"), unit}}
	}
	changed := func(property string) *dbus.Signal {
		return &dbus.Signal{Sender: ":1.2", Path: systemdPath, Name: properties + ".PropertiesChanged",
			Body: []any{systemdManager, map[string]dbus.Variant{property: dbus.MakeVariant("stopping")}, []string{}}}
	}
	for name, c := range map[string]struct {
		s    *dbus.Signal
		mean bool
	}{
		"shutdown":         {job(":1.2", systemdManager+".JobNew", "shutdown.target"), true},
		"power off":        {job(":1.2", systemdManager+".JobNew", "poweroff.target"), true},
		"another's":        {job(":1.9", systemdManager+".JobNew", "shutdown.target"), false},
		"another unit":     {job(":1.2", systemdManager+".JobNew", "cron.service"), false},
		"no body":          {&dbus.Signal{Sender: ":1.2", Path: systemdPath, Name: systemdManager + ".JobNew"}, false},
		"its state":        {changed("SystemState"), true},
		"another property": {changed("NNames"), false},
	} {
		b := bus{owner: ":1.7", pid1: ":1.2"}
		if got := b.trusted(c.s); got != c.mean {
			t.Errorf("%s: %v", name, got)
		}
	}
	if b := (bus{}); b.trusted(job("", systemdManager+".JobNew", "shutdown.target")) {
		t.Error("a signal of nobody was believed")
	}
}
