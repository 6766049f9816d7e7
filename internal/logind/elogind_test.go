//go:build !unit

package logind

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// systemdOn has the bus a systemd that sends logind its SIGHUP. elogind reads one file
// and no drop-ins, so what is in the drop-in is put there first.
func systemdOn(t *testing.T, m *logind.Machine, root string) {
	t.Helper()
	conn, err := dbus.Connect("unix:path=" + m.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	kill := func(unit, _ string, signal int32) *dbus.Error {
		text, err := os.ReadFile(filepath.Join(root, dropInDir, dropInName))
		if _, delay, ok := strings.Cut(string(text), "[Login]\nInhibitDelayMaxSec="); err == nil && ok && unit == "systemd-logind.service" && signal == 1 {
			seconds, err := time.ParseDuration(strings.TrimSpace(delay) + "s")
			if err != nil {
				t.Error(err)
			}
			m.SetDelay(t, seconds)
			m.Reload(t)
		}
		return nil
	}
	if err := conn.ExportMethodTable(map[string]any{"KillUnit": kill}, "/org/freedesktop/systemd1", systemd+".Manager"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(systemd, dbus.NameFlagReplaceExisting); err != nil {
		t.Fatal(err)
	}
}

func rootDir(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc/systemd"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestElogindDelaysForAsLongAsTheDropInSaysAndWaitsForTheInhibitor(t *testing.T) {
	m, root := logind.Start(t, 5*time.Second), rootDir(t)
	systemdOn(t, m, root)
	w := watch(t, &Logind{Socket: m.Socket, Wanted: 2 * time.Minute, Root: root})
	if s := w.until("held", known); s.Delay != 2*time.Minute {
		t.Errorf("%+v", s)
	}
	m.Shutdown(t, "PowerOff")
	if s := w.until("shutdown", down); !s.Held {
		t.Errorf("%+v", s)
	}
	if _, _, down := m.Down(t); down {
		t.Fatal("it went down with an inhibitor held")
	}
	w.Release()
	node.Eventually(t, testTimeout, func() bool { _, _, down := m.Down(t); return down }, "it goes down")
}

func TestADropInThatNobodyHasLogindReadIsSaid(t *testing.T) {
	m, root := logind.Start(t, 5*time.Second), rootDir(t) // and no systemd on the bus
	w := watch(t, &Logind{Socket: m.Socket, Wanted: 2 * time.Minute, Root: root})
	if s := w.until("held", known); s.Delay != 5*time.Second {
		t.Errorf("%+v", s)
	}
	w.stop()
	if !strings.Contains(w.lines.String(), "is written, but systemd cannot have logind read it (restart logind)") {
		t.Error("not said:", w.lines)
	}
	// As it says: the next logind reads it.
	if _, err := os.Stat(filepath.Join(root, dropInDir, dropInName)); err != nil {
		t.Error(err)
	}
}

// An agent beside it that is killed holds nothing any more.
func TestElogindGoesDownAtOnceWhenWhoHeldTheInhibitorHasEnded(t *testing.T) {
	m := logind.Start(t, time.Minute)
	w := watch(t, &Logind{Socket: m.Socket})
	w.until("held", known)
	m.Shutdown(t, "Reboot")
	w.until("shutdown", down)
	second := watch(t, &Logind{Socket: m.Socket})
	if s := second.until("shutdown", down); s != (agent.MachineState{Known: true, ShuttingDown: true, Delay: time.Minute}) {
		t.Errorf("who comes in the middle is told %+v", s)
	}
	w.stop()
	node.Eventually(t, testTimeout, func() bool { verb, _, down := m.Down(t); return down && verb == "reboot" }, "it goes down")
}
