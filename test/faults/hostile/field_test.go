package hostile

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const ms = time.Millisecond

// soon bounds the wait for what has no promised time.
const soon = 30 * time.Second

// The contract's bounds on what a hostile tenant may cost the others.
const (
	reaction  = 100 * ms
	maxMemory = 64 << 20
	maxLog    = 64 << 10 // bytes of log per attack
)

// field is what a test needs for an attack: the VM of the attacker, the VM of a bystander,
// which must stay as it is, a neighbour on whose triggers the agent must act meanwhile, and
// a directory outside, which must also stay as it is.
type field struct {
	n         *node.Node
	a         *node.Agent
	attacker  *node.VM
	bystander *node.VM
	neighbour *node.Launcher
	outside   string
	before    node.VMStatus
}

const precious = "precious"

func newField(t *testing.T) *field {
	t.Helper()
	n := node.New(t)
	f := &field{n: n, a: n.Agent(t), outside: t.TempDir()}
	f.a.Path = node.Shipped(t, "node-agent") // its memory is measured
	f.a.Start(t)
	f.attacker = f.a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3600")
	f.bystander = f.a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3600")
	f.neighbour = neighbour(t, f.a)
	for _, name := range []string{"vm.json", "shutdown", "status.json"} {
		if err := os.WriteFile(filepath.Join(f.outside, name), []byte(precious), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.before, _ = f.a.StatusOf(t, f.bystander.Guest)
	return f
}

// strangers is a trigger that names another VM. The agent removes it at once, so a test can
// write it any number of times.
const strangers = `{"version":1,"uid":"somebody-else","signal":"SIGTERM","time":"2026-01-01T00:00:00Z"}`

// neighbour returns a launcher directory that has no VM. The agent already acts on it.
func neighbour(t *testing.T, a *node.Agent) *node.Launcher {
	t.Helper()
	l := a.LauncherFor(t, "vmgrace-test", "neighbour", "uid-neighbour")
	l.Write(t, "vm.json", `{"version":1,"namespace":"vmgrace-test","name":"neighbour","uid":"uid-neighbour","gracePeriodSeconds":0}`)
	answered(t, l, soon)
	return l
}

// answered writes a trigger and returns how long the agent took to act on it.
func answered(t *testing.T, l *node.Launcher, within time.Duration) time.Duration {
	t.Helper()
	// Triggers of one inode number and one tick of the kernel's clock look alike.
	node.WaitUntil(t, time.Now().Add(50*ms))
	l.Write(t, "shutdown", strangers)
	return gone(t, l.Path("shutdown"), within)
}

// gone waits until the file does not exist and returns how long that took.
func gone(t *testing.T, path string, within time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	tick := time.NewTicker(ms)
	defer tick.Stop()
	for {
		took := time.Since(begin)
		if _, err := os.Lstat(path); os.IsNotExist(err) {
			return took
		}
		if took > within {
			t.Fatalf("%s is not acted upon within %v", path, within)
		}
		<-tick.C
	}
}

// endures checks, while an attack runs, that it affects nobody else: the agent acts on
// every trigger of the neighbour in time, and stays within its bounds.
func (f *field) endures(t *testing.T) {
	t.Helper()
	const tries = 8
	logged, cpu, begin := len(f.a.Log()), cpuTime(t, f.a), time.Now()
	worst, memory := time.Duration(0), 0
	for range tries {
		took := f.reacts(t)
		worst = max(worst, took)
		memory = max(memory, f.a.Resident(t))
		node.WaitUntil(t, time.Now().Add(300*ms)) // the neighbour must not be an attacker itself
	}
	busy := float64(cpuTime(t, f.a)-cpu) / float64(time.Since(begin))
	grown := len(f.a.Log()) - logged
	t.Logf("reaction up to %v, VmRSS up to %d MiB, CPU %.0f %%, %d bytes of log", worst, memory>>20, 100*busy, grown)
	if memory > maxMemory {
		t.Errorf("the agent has %d MiB", memory>>20)
	}
	if grown > maxLog {
		t.Errorf("%d bytes of log", grown)
	}
	f.untouched(t)
}

// reacts writes the neighbour's trigger and returns how long the agent took to act on it.
// It may take the promised time and, if no core is free, twice the lateness of a plain
// thread: one thread is woken to read the event and another one to act.
func (f *field) reacts(t *testing.T) time.Duration {
	t.Helper()
	node.WaitUntil(t, time.Now().Add(50*ms)) // see answered
	begin := time.Now()
	f.neighbour.Write(t, "shutdown", strangers)
	took := gone(t, f.neighbour.Path("shutdown"), soon)
	if machine := f.n.Late(begin, time.Now()); took > reaction+2*machine {
		t.Errorf("a neighbour's trigger was acted upon after %v, want %v and twice the %v that the machine is late", took, reaction, machine)
	}
	return took
}

// untouched checks that the agent lives, and that the bystander and the files outside are
// as they were.
func (f *field) untouched(t *testing.T) {
	t.Helper()
	if code, _, err := f.a.Get(t.Context(), "/livez"); code != http.StatusOK {
		t.Fatalf("/livez: %d, %v", code, err)
	}
	if now, ok := f.a.StatusOf(t, f.bystander.Guest); !ok || now != f.before {
		t.Errorf("the bystander's record is now %+v", now)
	}
	if f.bystander.Gone() || !f.bystander.Shim.Running() || f.bystander.Launcher.Has("shutdown") {
		t.Error("the bystander was touched")
	}
	entries, err := os.ReadDir(f.outside)
	if err != nil || len(entries) != 3 {
		t.Errorf("outside there is %v now (%v)", entries, err)
	}
	for _, e := range entries {
		if content, err := os.ReadFile(filepath.Join(f.outside, e.Name())); string(content) != precious {
			t.Errorf("%s outside is now %q, %v", e.Name(), content, err)
		}
	}
}

// cpuTime returns the CPU time of a process: utime and stime of proc(5), in ticks of 10 ms.
func cpuTime(t *testing.T, p *node.Agent) time.Duration {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatalf("%q: %v, %v", stat, err1, err2)
	}
	return time.Duration(user+system) * 10 * ms
}
