//go:build !unit

package logind

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// systemdOn puts a systemd on the bus that sends logind its SIGHUP. elogind reads one
// file and no drop-ins. So the result of the drop-ins, as logind reads them, is
// written there first.
func systemdOn(t *testing.T, m *logind.Machine, root string) {
	t.Helper()
	conn, err := dbus.Connect("unix:path=" + m.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	kill := func(unit, _ string, signal int32) *dbus.Error {
		if unit == "systemd-logind.service" && signal == 1 {
			reloaded(t, m, root)
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

// reloaded makes logind read its drop-ins: the last name of all directories counts.
func reloaded(t *testing.T, m *logind.Machine, root string) {
	t.Helper()
	last, delay := "", time.Duration(0)
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "systemd/logind.conf.d/*.conf"))
		if err != nil {
			t.Error(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			_, seconds, sets := strings.Cut(string(text), "[Login]\nInhibitDelayMaxSec=")
			if err != nil || !sets || filepath.Base(file) <= last {
				continue
			}
			last = filepath.Base(file)
			if delay, err = time.ParseDuration(strings.TrimSpace(seconds) + "s"); err != nil {
				t.Error(err)
			}
		}
	}
	m.SetDelay(t, delay)
	m.Reload(t)
}

// dropInAt writes a drop-in as a distribution, or somebody else, would.
func dropInAt(t *testing.T, root, path, head, seconds string) {
	t.Helper()
	file := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(head+"[Login]\nInhibitDelayMaxSec="+seconds+"\n"), 0o600); err != nil {
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

func TestElogindDelaysAsTheDropInSaysAndWaits(t *testing.T) {
	m, root := logind.Start(t, 5*time.Second), rootDir(t)
	systemdOn(t, m, root)
	w := watch(t, &Logind{Socket: m.Socket, Wanted: 2 * time.Minute, Root: root})
	w.until("lengthened", delayed(2*time.Minute))
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

func TestTheDropInTakesTheLastPlace(t *testing.T) {
	const ubuntu = "usr/lib/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf"
	m, root := logind.Start(t, 30*time.Second), rootDir(t)
	systemdOn(t, m, root)
	dropInAt(t, root, ubuntu, "", "30")
	dropInAt(t, root, "etc/systemd/logind.conf.d/99-vmgrace.conf", "# Written by vmgrace's node-agent (--node-shutdown-timeout).\n", "60")
	w := watch(t, &Logind{Socket: m.Socket, Wanted: 2 * time.Minute, Root: root, check: 50 * time.Millisecond})
	if s := w.until("lengthened", delayed(2*time.Minute)); s.SetBy != "" {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(filepath.Join(root, "etc/systemd/logind.conf.d/99-vmgrace.conf")); !os.IsNotExist(err) {
		t.Errorf("what an earlier agent has written is still there: %v", err)
	}
	// When another file comes, which sorts after it, and logind reads it,
	dropInAt(t, root, "etc/systemd/logind.conf.d/zzzz-mine.conf", "", "7")
	reloaded(t, m, root)
	// then the agent's is the last again.
	node.Eventually(t, testTimeout, func() bool { return w.until("again", known).Delay == 2*time.Minute }, "logind delays for as long as is wanted")
	w.stop()
	for _, file := range []string{ubuntu, "etc/systemd/logind.conf.d/zzzz-mine.conf"} {
		if !strings.Contains(w.lines.String(), "file=/"+file) {
			t.Errorf("%s is not named: %s", file, w.lines)
		}
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Errorf("somebody else's file: %v", err)
		}
	}
	ours, err := filepath.Glob(filepath.Join(root, dropInDir, "*vmgrace*"))
	if err != nil || len(ours) != 1 {
		t.Errorf("%v, %v: one file is the agent's", ours, err)
	}
}

func TestADropInThatNobodyHasLogindReadIsSaid(t *testing.T) {
	m, root := logind.Start(t, 5*time.Second), rootDir(t) // and no systemd on the bus
	w := watch(t, &Logind{Socket: m.Socket, Wanted: 2 * time.Minute, Root: root})
	for range 2 { // before the attempt, and after it
		w.until("held", delayed(5*time.Second))
	}
	w.stop()
	if !strings.Contains(w.lines.String(), "is written, but systemd cannot have logind read it (restart logind)") {
		t.Error("not said:", w.lines)
	}
	// As the message says, the next logind reads it.
	if _, err := os.Stat(filepath.Join(root, dropInDir, dropInName)); err != nil {
		t.Error(err)
	}
}

// A second agent that is killed holds no inhibitor any more.
func TestElogindGoesDownAtOnceWhenWhoHeldTheInhibitorHasEnded(t *testing.T) {
	m := logind.Start(t, time.Minute)
	w := watch(t, &Logind{Socket: m.Socket})
	w.until("held", known)
	m.Shutdown(t, "Reboot")
	w.until("shutdown", down)
	second := watch(t, &Logind{Socket: m.Socket})
	if s := second.until("shutdown", down); s != (agent.NodeState{Known: true, ShuttingDown: true, Delay: time.Minute}) {
		t.Errorf("who comes in the middle is told %+v", s)
	}
	w.stop()
	node.Eventually(t, testTimeout, func() bool { verb, _, down := m.Down(t); return down && verb == "reboot" }, "it goes down")
}
