//go:build !unit

package handover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// What hostile launchers may cost an agent.
const (
	maxHostileMemory = 16 << 20
	maxHostileLog    = 256 << 10
)

// realQEMU is a launcher with a real QEMU that waits.
const realQEMU = "QEMU"

// attack is a VM whose launchers lie.
type attack struct {
	source, target string // what they do; see liar
	options        string // of its migration
	// during is what happens to the target's launcher directory or pod once its launcher is there.
	during func(v, like *vm)
	want   string // in the failure reason; "" = it moves
}

// attacks are those of this test, by what they do.
func attacks() map[string]attack {
	const (
		slow = `"bandwidthMiB":4,"progressTimeout":30,"completionTimeoutPerGiB":4`
		// Their time is that of all of the node's memory.
		quick  = `"bandwidthMiB":4,"progressTimeout":30,"completionTimeoutPerGiB":1`
		stalls = `"bandwidthMiB":4,"progressTimeout":3,"completionTimeoutPerGiB":60`
	)
	return map[string]attack{
		"the stream never ends, though all is sent": {source: "completed endless", target: "honest", options: slow, want: "has not got it"},
		"the stream never ends":                     {source: "endless", target: "honest", options: quick, want: "not complete after"},
		"the stream stalls":                         {source: "stalls", target: "honest", options: stalls, want: "no progress for"},
		"the target does not read":                  {source: "endless", target: "stalls", options: quick, want: "not complete after"},
		"answers to what was never asked":           {source: "answers", target: "answers", options: slow, want: ""},
		"arrived without a stream":                  {source: "honest", target: "arrived", options: slow, want: "node node-b did not let it in"},
		"completed, and nothing sent":               {source: "completed", target: "honest", options: slow, want: "has not got it"},
		"completed, and it runs on":                 {source: "runs on", target: "honest", options: slow, want: ""},
		"completed, and silence":                    {source: "silent", target: "honest", options: slow, want: "has not got it; its launcher does not let it go on"},
		"arrives for ever":                          {source: "honest", target: "for ever", options: slow, want: "has not got it"},
		"vm.json changes all the time":              {source: "changes", target: "changes", options: slow, want: ""},
		"a second shim":                             {source: "second", target: "honest", options: slow, want: "not complete after"},
		"a directory for a socket at the source":    {source: "directory", target: "honest", options: slow, want: "migration.sock"},
		"a directory for a socket at the target":    {source: "honest", target: "directory", options: slow, want: "node node-b did not let it in: socket for the launcher"},
		"a directory in place of the socket":        {source: "swaps", target: "honest", options: slow, want: "has not got it"},
		"a link and a FIFO for a socket":            {source: "link", target: "fifo", options: slow, want: ""},
		"another's socket":                          {source: "socket", target: "socket", options: slow, want: ""},
		"the target pod is exchanged":               {source: "endless", target: "honest", options: quick, during: (*vm).exchanged, want: "not complete after"},
	}
}

// Given VMs whose launchers lie, each in its own way. When they are moved, then each migration
// ends, and its reason says what has happened. Meanwhile another VM of these nodes is moved as
// ever, and in the end nothing of the attacks is left in the agents.
func TestHostileLaunchersHarmTheirOwnMoveOnly(t *testing.T) {
	w := givenShipped(t)
	bystander := w.lying(honest, nil)
	bystander.movesOn(w.b) // what a move costs an agent once is there before
	all := attacks()
	hostile := w.begin(all, nil)
	watch := w.watchAgents()
	hostile.lie()
	for _, to := range []*host{w.a, w.b, w.a} {
		bystander.movesOn(to)
	}
	hostile.settle()
	watch()
}

// honest is no attack.
var honest = attack{source: "honest", target: "honest"}

// givenShipped is started with agents whose memory can be measured.
func givenShipped(t *testing.T) world {
	t.Helper()
	w := started(t, inPods{})
	for _, h := range []*host{w.a, w.b} {
		h.agent.Path = node.Shipped(t, "node-agent")
		h.restart(w)
	}
	return w
}

// movesOn moves a VM with launchers that do not lie.
func (v *vm) movesOn(to *host) {
	w := v.w
	w.Helper()
	began := time.Now()
	v.migrates(to, "", func() { v.there.lie(w, honest.target, v.migrationUID, nil) })
	v.settles("the bystander", honest)
	if took := time.Since(began); took > soon {
		w.Errorf("it moves in %v", took)
	} else {
		w.Logf("it moves in %v", took)
	}
	w.api.Kubectl(w, "label", "vmi", v.Name, "kubevirt.io/nodeName="+to.name, "--overwrite")
	w.api.Kubectl(w, "delete", "pod", v.here.pod, "--grace-period=0", "--force")
	v.here = v.there
}

// lies are VMs whose launchers lie.
type lies struct {
	w       world
	attacks map[string]attack
	vms     map[string]*vm
	like    *vm // whose machine they have, if any
}

func (w world) begin(attacks map[string]attack, like *vm) lies {
	w.Helper()
	l := lies{w, attacks, map[string]*vm{}, like}
	for what, a := range attacks {
		l.vms[what] = w.lying(a, like)
	}
	return l
}

func (l lies) lie() {
	l.w.Helper()
	for what, a := range l.attacks {
		l.vms[what].lies(a, l.like)
	}
}

func (l lies) settle() {
	l.w.Helper()
	for what, a := range l.attacks {
		l.vms[what].settles(what, a)
	}
	pods := []string{"delete", "pod", "--grace-period=0", "--force"}
	for _, v := range l.vms {
		v.here.shim.Kill()
		v.there.shim.Kill()
		pods = append(pods, v.here.pod, v.there.pod)
	}
	l.w.api.Kubectl(l.w, append(pods, "--ignore-not-found")...)
}

// watchAgents watches what the agents use. The function that it returns checks that this was little,
// and that nothing of it is left.
func (w world) watchAgents() (check func()) {
	w.Helper()
	hosts := []*host{w.a, w.b}
	before := []cost{w.a.cost(w), w.b.cost(w)}
	most := make([]uint64, len(hosts))
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			for n, h := range hosts {
				most[n] = max(most[n], anonymous(w, h.agent.Process))
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); watching.Wait() })
	w.Cleanup(end)
	return func() {
		w.Helper()
		end()
		for n, h := range hosts {
			more := int64(most[n]) - int64(before[n].memory)
			w.Logf("%s: %.1f MiB more, %d bytes of log", h.name, float64(more)/(1<<20), len(warnings(h.agent.Log()))-before[n].log)
			if more > maxHostileMemory {
				w.Errorf("%s: %d MiB more", h.name, more>>20)
			}
			h.leaves(w, before[n])
		}
	}
}

// cost is what an agent uses.
type cost struct {
	memory          uint64
	goroutines, fds int
	log             int
}

func (h *host) cost(w world) cost {
	w.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.agent.PID()))
	if err != nil {
		w.Fatal(err)
	}
	return cost{anonymous(w, h.agent.Process), int(h.agent.Metrics(w)["go_goroutines"]), len(fds), len(warnings(h.agent.Log()))}
}

// warnings returns a log without the lines that an agent without -v does not write.
func warnings(log string) string {
	var lines strings.Builder
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "level=DEBUG") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// leaves checks that nothing is left of what came after was.
func (h *host) leaves(w world, was cost) {
	w.Helper()
	if grown := len(warnings(h.agent.Log())) - was.log; grown > maxHostileLog {
		w.Errorf("%s: %d bytes of log", h.name, grown)
	}
	var is cost
	// A few connections to the API server come and go.
	const slack = 6
	if !node.Poll(w.Context(), soon, func() bool {
		is = h.cost(w)
		return is.goroutines <= was.goroutines+slack && is.fds <= was.fds+slack
	}) {
		w.Errorf("%s: %d goroutines and %d descriptors, formerly %d and %d", h.name, is.goroutines, is.fds, was.goroutines, was.fds)
	}
}

// lying makes a VM on node-a whose launcher lies.
func (w world) lying(a attack, like *vm) *vm {
	w.Helper()
	s := node.Spec{Namespace: "default"}.Complete()
	w.api.KubectlApply(w, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: default, labels: {kubevirt.io/nodeName: node-a}}
spec: {terminationGracePeriodSeconds: 60}
`, s.Name))
	v := &vm{w: w, uid: w.get("vmi", s.Name, "{.metadata.uid}"), spec: s, VM: &node.VM{Guest: &node.Guest{Spec: s, Domain: s.DomainName()}}}
	v.UID = v.uid
	v.here = v.place(w.a, "")
	v.here.lie(w, a.source, "", like)
	node.Eventually(w, soon, func() bool { r, ok := w.a.agent.StatusOf(w, v.Guest); return ok && r.UID == v.uid }, "%s is not guarded", v.Domain)
	return v
}

// lies begins the migration of a VM whose launchers lie.
func (v *vm) lies(a attack, like *vm) {
	w := v.w
	w.Helper()
	v.migrates(w.b, a.options, func() {
		if a.target == realQEMU {
			w.kind.receive(v)
			return
		}
		v.there.lie(w, a.target, v.migrationUID, like)
	})
	if a.during != nil {
		a.during(v, like)
	}
}

// exchanged replaces the target pod as soon as the guest is being sent.
func (v *vm) exchanged(like *vm) {
	w := v.w
	w.Helper()
	node.Eventually(w, soon, func() bool { return v.phase() == "Running" }, "it is not sent")
	w.api.Kubectl(w, "delete", "pod", v.there.pod, "--grace-period=0", "--force")
	v.there.shim.Kill() // its guest goes along
	v.there = v.place(w.b, v.migrationUID)
	v.there.lie(w, "arrived", v.migrationUID, like)
}

// settles checks how a migration has ended.
func (v *vm) settles(what string, a attack) {
	w := v.w
	w.Helper()
	want := "Running/Absent"
	if a.want == "" {
		want = "Gone/Running"
	}
	var said string
	if !node.Poll(w.Context(), time.Minute, func() bool { said = v.states(); return said == want }) {
		w.Errorf("%s: %s, %s: %s", what, v.phase(), said, v.whyFailed())
		for _, p := range []place{v.here, v.there} {
			text, err := os.ReadFile(p.launcher.Path("vm.json"))
			w.Logf("%s: %s %v", p.name, text, err)
		}
		return
	}
	why := v.whyFailed()
	if !strings.Contains(why, a.want) || strings.Contains(why, "\n") {
		w.Errorf("%s: the reason is %q, want %q", what, why, a.want)
	}
	w.Logf("%s: %s %s", what, said, why)
	phase := map[bool]string{true: "Succeeded", false: "Failed"}[a.want == ""]
	v.patch(`{"phase":"` + phase + `"}`)
	if lives := unix.Kill(v.here.guest(), 0) == nil; lives != (a.want != "") {
		w.Errorf("%s: the source's process lives: %t", what, lives)
	}
	for _, p := range []place{v.here, v.there} {
		info, err := os.Lstat(p.launcher.Path("migration.sock"))
		if err == nil && info.Mode().Type() == os.ModeSocket && !strings.Contains(a.source+a.target, "socket") {
			w.Errorf("%s: %s still has a socket", what, p.name)
		}
	}
}

// guest returns the pid of the process that stands for QEMU.
func (p place) guest() int { return pidIn(p.launcher.Path("guest.pid")) }

func pidIn(path string) (pid int) {
	text, _ := os.ReadFile(path) // 0 while it is not there
	_, _ = fmt.Sscan(string(text), &pid)
	return pid
}

// decoy puts something else where the agent's socket will be.
func decoy(dir, what string) error {
	at := filepath.Join(dir, "migration.sock")
	switch what {
	case "directory":
		return os.MkdirAll(filepath.Join(at, "not-empty"), 0o755)
	case "link":
		return os.Symlink("/etc/hostname", at)
	case "fifo":
		return unix.Mkfifo(at, 0o666)
	case "socket":
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		d, err := os.Open(dir) // its own path is too long
		if err != nil {
			return err
		}
		defer d.Close()
		return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/migration.sock", d.Fd())}), unix.Close(fd))
	}
	return nil
}

// noise fills a buffer with bytes that are no migration.
func noise(b []byte) {
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
}
