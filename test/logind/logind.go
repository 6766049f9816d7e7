package logind

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	timeout = 20 * time.Second
	name    = "org.freedesktop.login1"
	path    = "/org/freedesktop/login1"
	manager = name + ".Manager"

	busConfig = `<busconfig><type>session</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth><policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`
)

// Machine is a machine that can be shut down: a bus and a logind.
type Machine struct {
	// Socket is the path of the bus's socket.
	Socket string

	dir    string
	bus    *node.Process
	logind *node.Process
}

// Start starts a machine whose inhibitors can delay its shutdown by at most delay. The
// machine ends with the test.
func Start(t node.T, delay time.Duration) *Machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "vmgrace-logind-") // a short path, for the socket
	if err != nil {
		t.Fatalf("logind: %v", err)
	}
	m := &Machine{dir: dir, Socket: filepath.Join(dir, "system_bus_socket")}
	t.Cleanup(func() {
		if t.Failed() && m.logind != nil {
			t.Logf("elogind said:\n%s", m.logind.Log())
		}
		for _, p := range []*node.Process{m.logind, m.bus} {
			if p != nil {
				p.Kill()
			}
		}
		_ = os.RemoveAll(dir)
	})
	m.SetDelay(t, delay)
	m.StartBus(t)
	m.StartLogind(t)
	return m
}

// SetDelay writes logind's configuration. logind reads it at its next start or SIGHUP.
func (m *Machine) SetDelay(t node.T, delay time.Duration) {
	t.Helper()
	text := fmt.Sprintf("[Login]\nInhibitDelayMaxSec=%d\nKillUserProcesses=no\n", delay/time.Second)
	if err := os.WriteFile(m.config(), []byte(text), 0o600); err != nil {
		t.Fatalf("logind.conf: %v", err)
	}
}

func (m *Machine) config() string { return filepath.Join(m.dir, "logind.conf") }
func (m *Machine) down() string   { return filepath.Join(m.dir, "down") }

// StartBus starts the bus, which must not be running.
func (m *Machine) StartBus(t node.T) {
	t.Helper()
	file := filepath.Join(m.dir, "bus.conf")
	_ = os.Remove(m.Socket)
	if err := os.WriteFile(file, fmt.Appendf(nil, busConfig, m.Socket), 0o600); err != nil {
		t.Fatalf("bus: %v", err)
	}
	var err error
	if m.bus, err = node.StartProcess(exec.Command("dbus-daemon", "--config-file="+file, "--nofork"), filepath.Join(m.dir, "bus.log")); err != nil {
		t.Fatalf("%v; make deps installs it", err)
	}
	node.Eventually(t, timeout, func() bool { _, err := os.Stat(m.Socket); return err == nil || !m.bus.Running() }, "the bus is there")
	if !m.bus.Running() {
		t.Fatalf("dbus-daemon ended: %s", m.bus.Log())
	}
}

// StopBus kills the bus.
func (m *Machine) StopBus() { m.bus.Kill() }

// inside is the script that runs in the namespaces. It hides directories only there. elogind sees
// this machine's processes, because it looks for those that ask it, and may not reboot the machine.
const inside = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/elogind/logind.conf.d
ln -s "$3" /run/elogind/logind.conf.d/test.conf
mount -t tmpfs -o mode=755 tmpfs /usr/sbin
for verb in poweroff reboot halt; do
	printf '#!/bin/sh\necho "%s $(date +%%s%%N)" >>"%s"\n' "$verb" "$2" >/usr/sbin/$verb
	chmod 755 /usr/sbin/$verb
done
exec setpriv --bounding-set=-sys_boot --inh-caps=-sys_boot "$1"
`

// StartLogind starts logind, which must not be running, and waits until it answers.
func (m *Machine) StartLogind(t node.T) {
	t.Helper()
	elogind, err := program()
	if err != nil {
		t.Fatalf("%v", err)
	}
	cmd := exec.Command("unshare", "--mount", "--net", "--uts", "sh", "-c", inside, "sh", elogind, m.down(), m.config())
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+m.Socket, "LD_LIBRARY_PATH="+libraries())
	if m.logind, err = node.StartProcess(cmd, filepath.Join(m.dir, "elogind.log")); err != nil {
		t.Fatalf("%v", err)
	}
	up := func() bool {
		_, err := m.property("PreparingForShutdown")
		return err == nil || !m.logind.Running()
	}
	if !node.Poll(t.Context(), timeout, up) || !m.logind.Running() {
		t.Fatalf("elogind does not answer: %s", m.logind.Log())
	}
}

// Boot starts logind again after the machine has gone down.
func (m *Machine) Boot(t node.T) {
	t.Helper()
	m.StopLogind()
	if err := os.Remove(m.down()); err != nil {
		t.Fatalf("boot: %v", err)
	}
	m.StartLogind(t)
}

// places returns where Debian's and Ubuntu's packages have elogind or its library.
func places() []string {
	return []string{"lib/elogind", "usr/lib/elogind", "usr/libexec", "usr/libexec/elogind", "lib/x86_64-linux-gnu/elogind", "usr/lib/x86_64-linux-gnu/elogind"}
}

// unpacked returns where hack/deps.sh has unpacked a place of elogind's packages.
func unpacked(place string) string { return filepath.Join(node.CacheDir(), "elogind", place) }

func program() (string, error) {
	for _, place := range places() {
		file := filepath.Join(unpacked(place), "elogind")
		if s, err := os.Stat(file); err == nil && s.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", errors.New("elogind is not unpacked: run make deps")
}

func libraries() string {
	dirs := make([]string, 0, len(places()))
	for _, place := range places() {
		dirs = append(dirs, unpacked(place))
	}
	return strings.Join(dirs, ":")
}

// StopLogind kills logind, which ends all its inhibitors.
func (m *Machine) StopLogind() { m.logind.Kill() }

// Reload makes logind read its configuration.
func (m *Machine) Reload(t node.T) {
	t.Helper()
	if err := m.logind.Signal(syscall.SIGHUP); err != nil {
		t.Fatalf("SIGHUP to logind: %v", err)
	}
}

// call calls a method of one of logind's objects on a connection of its own.
func (m *Machine) call(object, method string, args ...any) (*dbus.Call, error) {
	conn, err := dbus.Connect("unix:path=" + m.Socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	call := conn.Object(name, dbus.ObjectPath(object)).Call(method, dbus.FlagNoAutoStart, args...)
	return call, call.Err
}

func (m *Machine) property(of string) (value dbus.Variant, err error) {
	call, err := m.call(path, "org.freedesktop.DBus.Properties.Get", manager, of)
	if err != nil {
		return value, err
	}
	return value, call.Store(&value)
}

// Preparing tells whether logind prepares for a shutdown.
func (m *Machine) Preparing(t node.T) bool {
	t.Helper()
	v, err := m.property("PreparingForShutdown")
	if err != nil {
		t.Fatalf("PreparingForShutdown: %v", err)
	}
	preparing, ok := v.Value().(bool)
	return ok && preparing
}

// Shutdown asks logind for a shutdown by its method PowerOff, Reboot or Halt. It returns
// when it asked.
func (m *Machine) Shutdown(t node.T, method string) time.Time {
	t.Helper()
	at := time.Now()
	if _, err := m.call(path, manager+"."+method, false); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return at
}

// Inhibit delays shutdowns until the file is closed, as programs other than the agent do.
func (m *Machine) Inhibit(t node.T, who string) *os.File {
	t.Helper()
	call, err := m.call(path, manager+".Inhibit", "shutdown", who, "a test", "delay")
	if err != nil {
		t.Fatalf("inhibit: %v", err)
	}
	var fd dbus.UnixFD
	if err := call.Store(&fd); err != nil {
		t.Fatalf("inhibit: %v", err)
	}
	return os.NewFile(uintptr(fd), who)
}

// Inhibitors returns the names of those who delay or block a shutdown.
func (m *Machine) Inhibitors(t node.T) (who []string) {
	t.Helper()
	call, err := m.call(path, manager+".ListInhibitors")
	if err != nil {
		t.Fatalf("inhibitors: %v", err)
	}
	var all []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	if err := call.Store(&all); err != nil {
		t.Fatalf("inhibitors: %v", err)
	}
	for _, i := range all {
		if strings.Contains(i.What, "shutdown") {
			who = append(who, i.Who)
		}
	}
	return who
}

// Down returns which stand-in ran first and when. ok is false while none has run.
func (m *Machine) Down(t node.T) (verb string, at time.Time, ok bool) {
	t.Helper()
	f, err := os.Open(m.down())
	if errors.Is(err, os.ErrNotExist) {
		return "", at, false
	} else if err != nil {
		t.Fatalf("stand-in: %v", err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		return "", at, false // the stand-in is writing the line
	}
	var ns int64
	if _, err := fmt.Sscan(line, &verb, &ns); err != nil {
		t.Fatalf("stand-in: %q: %v", line, err)
	}
	return verb, time.Unix(0, ns), true
}
