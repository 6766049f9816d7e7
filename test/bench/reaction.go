package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// few is the number of guests at a time while the reaction on an idle machine is measured.
const few = 20

// reaction measures row a: each guest has a shim, and its trigger appears by rename, as a
// shim writes it. The trigger appears once for the agent and once for the floor, in turns.
// The tap sees the requests on their way to libvirtd.
func reaction(b *bench) []figure {
	triggers := 2 * b.guests
	line := func(what, target string) figure {
		return figure{row: "a", unit: seconds, target: target, what: fmt.Sprintf("trigger → request at libvirt, record before it: %s", what)}
	}
	some, crowd := fmt.Sprintf("of %d, %d guests at a time", triggers, few), fmt.Sprintf("of %d, all guests at once", triggers)
	lines := []figure{
		line("p50 "+some, "≤ 3 × floor"), line("p99 "+some, "≤ 15 ms"), line("p50 "+crowd, ""), line("p99 "+crowd, ""),
	}
	add := func(lines []figure, took, least []float64) {
		for i, q := range []float64{0.5, 0.99} {
			lines[i].ours, lines[i].floor = append(lines[i].ours, quantile(took, q)), append(lines[i].floor, quantile(least, q))
		}
	}
	for range b.rounds {
		var took, least []float64
		for len(took) < triggers {
			a, bare := b.reactions(min(few, triggers-len(took)))
			took, least = append(took, a...), append(least, bare...)
		}
		add(lines[:2], took, least)
		took, least = b.reactions(triggers)
		add(lines[2:], took, least)
	}
	return lines
}

// reactions returns how long the agent and the floor took with each of n guests. It ends
// the guests.
func (b *bench) reactions(n int) (took, least []float64) {
	b.Helper()
	guests := b.firmware(n)
	ours, bare := b.tap(), b.tap()
	agent := b.node().Agent(b, "--libvirt-uri", "qemu+unix:///system?socket="+ours.socket,
		"--shutdown-retry-interval=1h", "--default-grace-period=1h")
	ours.state = agent.StateDir
	launchers, state := b.temp(), b.temp()
	for _, g := range guests {
		dir := filepath.Join(launchers, g.Domain)
		b.must(os.Mkdir(dir, 0o755))
		b.must(os.WriteFile(filepath.Join(dir, "uuid"), []byte(g.UUID), 0o600))
		b.must(os.WriteFile(filepath.Join(dir, "uid"), []byte(g.UID), 0o600))
	}
	shims := make([]*node.Process, 0, n)
	for _, g := range guests {
		shims = append(shims, b.shipped(agent, g).Shim)
	}
	b.guards(agent, guests)
	floor := b.start(b.floor("react", bare.socket, launchers, state))
	node.Eventually(b, time.Minute, func() bool { return floor.Log() != "" }, "the floor is ready")
	for _, g := range guests {
		text := b.written(g)
		begin := b.trigger(filepath.Join(agent.LaunchersDir, g.Domain), text)
		a := ours.next(b, g.Domain)
		if !a.recorded {
			b.Fatalf("the request for %s came before its record", g.Domain)
		}
		took = append(took, a.at.Sub(begin).Seconds())
		begin = b.trigger(filepath.Join(launchers, g.Domain), text)
		least = append(least, bare.next(b, g.Domain).at.Sub(begin).Seconds())
	}
	if !floor.Running() {
		b.Fatalf("the floor ended: %s", floor.Log())
	}
	agent.Kill()
	floor.Kill()
	for _, s := range shims {
		s.Kill()
	}
	for _, g := range guests {
		g.Signal(b, unix.SIGKILL)
		g.WaitGone(b, time.Minute)
	}
	return took, least
}

// between is how long both sides rest between two triggers: libvirtd works on a request for
// 14 ms, and vmgrace notes it 80 ms later.
const between = 100 * time.Millisecond

// shipped gives a guest its shim as in deploy/examples. The file that would name QEMU never
// appears.
func (b *bench) shipped(agent *node.Agent, g *node.Guest) *node.VM {
	b.Helper()
	return agent.VM(b, g, "--pid=", "--pid-file="+filepath.Join(b.node().Dir, "never"))
}

// written returns the trigger that a shim writes for a guest on SIGTERM.
func (b *bench) written(g *node.Guest) []byte {
	b.Helper()
	dir := b.temp()
	shim := b.start([]string{
		filepath.Join(b.bin, "launcher-shim"), "--namespace", g.Namespace, "--name", g.Name, "--uid", g.UID,
		"--launcher-dir", dir, "--pid-file", filepath.Join(dir, "never"),
	})
	there := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	}
	node.Eventually(b, time.Minute, there("vm.json"), "a shim registers")
	b.must(shim.Signal(unix.SIGTERM))
	node.Eventually(b, time.Minute, there("shutdown"), "a shim writes its trigger")
	shim.Kill()
	text, err := os.ReadFile(filepath.Join(dir, "shutdown"))
	b.must(err)
	return text
}

// trigger renames a trigger into a launcher directory and returns the time of that.
func (b *bench) trigger(dir string, text []byte) time.Time {
	temp := filepath.Join(dir, ".shutdown.bench")
	b.must(os.WriteFile(temp, text, 0o600))
	b.pause(between)
	unix.Sync() // so that no fsync has to write what others have left
	b.pause(between)
	begin := time.Now()
	b.must(os.Rename(temp, filepath.Join(dir, "shutdown")))
	return begin
}
