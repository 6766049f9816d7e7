package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

const (
	// peerRounds is the maximum number of rounds of the peers: it takes a minute to boot
	// the guests of one.
	peerRounds = 3
	// bootRest is how long guests rest between their boot and the request.
	bootRest = 3 * time.Second
	// offTimeout bounds the shutdown of all guests.
	offTimeout = 2 * time.Minute
)

// polite measures row b: guests that power off when they are asked. The time of ours begins
// with the first SIGTERM to a shim, that of the others with the start of their program.
func polite(b *bench) []figure {
	var ours, floor, script, loop []float64
	for n := range b.rounds {
		ours = append(ours, b.powerOff((*bench).shimsAsk))
		floor = append(floor, b.powerOff((*bench).floorAsks))
		if n >= peerRounds {
			continue
		}
		script = append(script, b.powerOff((*bench).scriptAsks))
		loop = append(loop, b.powerOff((*bench).virshAsks))
	}
	line := func(target, peerName string, peer []float64) figure {
		return figure{
			row: "b", what: fmt.Sprintf("%d polite guests at once: first SIGTERM → last QEMU gone (peers: %d rounds)", b.polite, len(script)), target: target, unit: seconds,
			ours: ours, floor: floor, peer: peer, peerName: peerName,
		}
	}
	return []figure{
		line("≤ 1.15 × floor, ≤ 0.25 × libvirt-guests", "libvirt-guests, all in parallel", script),
		line("", "virsh shutdown, one after the other", loop),
	}
}

// round runs f as a round of its own on the row's node. Everything that f starts ends with
// the round.
func (b *bench) round(f func(*bench)) {
	b.Helper()
	row := &stage{ctx: b.ctx}
	b.must(row.play(func() { f(&bench{stage: row, options: b.options, nodeOnce: b.node()}) }))
}

// powerOff boots guests and makes ask request their shutdown. It returns the seconds from
// then until the last QEMU has ended.
func (b *bench) powerOff(ask func(*bench, []*node.Guest) time.Time) (took float64) {
	b.Helper()
	b.round(func(b *bench) {
		guests := b.boot(b.polite)
		unix.Sync() // so that no fsync has to write what the boot has left
		begin := ask(b, guests)
		var last time.Time
		for _, g := range guests {
			last = g.WaitGone(b, offTimeout) // the last call returns after all have ended
		}
		b.offByThemselves(guests)
		took = last.Sub(begin).Seconds()
	})
	return took
}

// boot starts Linux guests, as many at a time as there are cores, and waits until all are
// up.
func (b *bench) boot(n int) []*node.Guest {
	b.Helper()
	guests, atOnce := make([]*node.Guest, 0, n), runtime.NumCPU()
	for i := range n {
		if i >= atOnce {
			guests[i-atOnce].WaitUp(b)
		}
		guests = append(guests, b.node().Start(b, node.Spec{Namespace: "vmgrace-bench"}))
	}
	for _, g := range guests {
		g.WaitUp(b)
	}
	return guests
}

// offByThemselves fails the row where a guest has not powered off by itself.
func (b *bench) offByThemselves(guests []*node.Guest) {
	b.Helper()
	for _, g := range guests {
		if !strings.Contains(g.Serial(), "vmgrace-guest: off") {
			b.Fatalf("%s did not power off: %s%s", g.Domain, g.Serial(), g.QEMULog())
		}
	}
}

// shimsAsk starts an agent and a shim for each guest, and signals all shims.
func (b *bench) shimsAsk(guests []*node.Guest) time.Time {
	shims := b.shimmed(guests)
	b.pause(bootRest)
	return b.terminate(shims)
}

// floorAsks, scriptAsks and virshAsks start a program that asks the guests.
func (b *bench) floorAsks(guests []*node.Guest) time.Time {
	args := []string{b.node().Socket()}
	for _, g := range guests {
		args = append(args, g.Domain, g.UUID)
	}
	argv := b.floor("ask", args...)
	return b.inNode(argv[0], argv[1:]...)
}

// scriptAsks runs the script that Debian runs at a host's shutdown. It runs in a mount
// namespace whose configuration makes it shut down all guests in parallel. The lock that
// the script removes is in that namespace, too.
func (b *bench) scriptAsks(guests []*node.Guest) time.Time {
	const program = "/usr/lib/libvirt/libvirt-guests.sh"
	const script = `mount --bind "$1" /etc/default/libvirt-guests && mount -t tmpfs none /run/lock && exec "$2" stop`
	shipped, err := os.ReadFile("/etc/default/libvirt-guests")
	b.must(err)
	conf := filepath.Join(b.temp(), "libvirt-guests")
	b.must(os.WriteFile(conf, fmt.Appendf(shipped, "PARALLEL_SHUTDOWN=%d\n", len(guests)), 0o600))
	// The script keeps a list of what ran at the last stop. While the list exists, the
	// script does nothing.
	b.Cleanup(func() { b.must(os.Remove(filepath.Join(b.node().Dir, "lib", "libvirt-guests"))) })
	return b.inNode("unshare", "--mount", "sh", "-c", script, "sh", conf, program)
}

func (b *bench) virshAsks(guests []*node.Guest) time.Time {
	args := []string{"-c", `for d; do virsh -q -c qemu:///system shutdown "$d" || exit; done`, "sh"}
	for _, g := range guests {
		args = append(args, g.Domain)
	}
	return b.inNode("sh", args...)
}

// inNode waits while the guests rest, starts a program in the node and returns the time of
// that. The program must end well before the round ends.
func (b *bench) inNode(name string, args ...string) time.Time {
	b.Helper()
	b.pause(bootRest)
	log := filepath.Join(b.temp(), "log")
	begin := time.Now()
	p, err := node.StartProcess(b.node().Command(name, args...), log)
	b.must(err)
	b.Cleanup(func() {
		code, ended := p.Exited(offTimeout)
		p.Kill()
		if !ended || code != 0 {
			b.Fatalf("%s: ended %v, status %d: %s", name, ended, code, p.Log())
		}
	})
	return begin
}

// shimmed starts an agent and a shim for each guest. The guests have an hour to power off.
func (b *bench) shimmed(guests []*node.Guest) []*node.Process {
	b.Helper()
	agent := b.node().Agent(b, "--default-grace-period=1h")
	shims := make([]*node.Process, 0, len(guests))
	for _, g := range guests {
		shims = append(shims, agent.VM(b, g).Shim)
	}
	b.guards(agent, guests)
	return shims
}

// terminate sends SIGTERM to all shims and returns when it began.
func (b *bench) terminate(shims []*node.Process) time.Time {
	b.Helper()
	begin := time.Now()
	for _, s := range shims {
		b.must(s.Signal(unix.SIGTERM))
	}
	return begin
}
