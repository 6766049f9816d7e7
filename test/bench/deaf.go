package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/test/node"
)

// ahead is how far in the future the deadline of row c is. The agent starts meanwhile.
const ahead = 6 * time.Second

// salvo is what the rounds of row c measured, in seconds from the deadline.
type salvo struct{ first, last, heard, gone, vanished []float64 }

// deaf measures row c: deaf guests have one deadline. Agent and floor run as in the
// DaemonSet's container. The kernel's list says when a SIGTERM was sent, and QEMU's log
// says when QEMU received it.
func deaf(b *bench) []figure {
	var ours, floor, virsh salvo
	for range b.rounds {
		b.volley(&ours, (*bench).agentKills)
		b.volley(&floor, (*bench).floorKills)
		b.volley(&virsh, (*bench).virshKills)
	}
	line := func(what, target string, ours, floor, virsh []float64) figure {
		return figure{
			row: "c", what: fmt.Sprintf("%d deaf guests, one deadline, with the DaemonSet's rights: %s", b.guests, what), target: target, unit: seconds,
			ours: ours, floor: floor, peer: virsh, peerName: "virsh destroy, all at once",
		}
	}
	return []figure{
		line("first SIGTERM sent after it", "≥ 0", ours.first, floor.first, virsh.first),
		line("last SIGTERM sent after it", "≤ 50 ms, ≤ 0.1 × virsh", ours.last, floor.last, virsh.last),
		line("last QEMU has heard it, by its log", "", ours.heard, floor.heard, virsh.heard),
		line("last QEMU gone", "≤ 1.2 × floor", ours.gone, floor.gone, virsh.gone),
		line("last domain gone from libvirt", "≤ 1.2 × floor", ours.vanished, floor.vanished, virsh.vanished),
	}
}

// volley starts guests, makes kill end them at a deadline, and adds the measurements to s.
func (b *bench) volley(s *salvo, kill func(*bench, []*node.Guest, grace.Mono, time.Time)) {
	b.Helper()
	b.round(func(b *bench) {
		guests := b.firmware(b.guests)
		signals := node.ListSignals(b)
		// The wall clock is read first, so its deadline is not later than the monotonic
		// one.
		wall, deadline := time.Now().Add(ahead), b.now().Add(ahead)
		vanished := b.vanish(guests)
		kill(b, guests, deadline, wall)
		var last time.Time
		for _, g := range guests {
			// WaitGone returns the time of its own return, so nothing may run in between.
			last = g.WaitGone(b, time.Minute)
		}
		gone := last.Sub(wall)
		var heard time.Duration
		for _, g := range guests {
			sent, ok := g.Terminated()
			if !ok {
				b.Fatalf("%s was not ended by SIGTERM: %s", g.Domain, g.QEMULog())
			}
			heard = max(heard, sent.At.Sub(wall))
		}
		begin, end := b.sent(signals, guests)
		s.first, s.last = append(s.first, begin.Sub(deadline).Seconds()), append(s.last, end.Sub(deadline).Seconds())
		s.heard, s.gone = append(s.heard, heard.Seconds()), append(s.gone, gone.Seconds())
		at, ok := <-vanished
		if !ok {
			b.Fatalf("domains that have no QEMU any more are still there")
		}
		s.vanished = append(s.vanished, at.Sub(wall).Seconds())
	})
}

// sent returns when the first and the last of the guests were sent their first SIGTERM.
func (b *bench) sent(signals *node.Signals, guests []*node.Guest) (first, last grace.Mono) {
	b.Helper()
	first = grace.Never
	for _, g := range guests {
		at, ok := signals.Sent(b, g, unix.SIGTERM)
		if !ok {
			b.Fatalf("nobody sent %s (process %d) a SIGTERM", g.Domain, g.PID)
		}
		first, last = min(first, grace.Mono(at)), max(last, grace.Mono(at))
	}
	return first, last
}

// vanish says when libvirt has removed the last of the domains: libvirt then removes its
// status file. After two minutes the channel is closed without a time.
func (b *bench) vanish(guests []*node.Guest) <-chan time.Time {
	last := make(chan time.Time, 1)
	there := func(g *node.Guest) bool {
		_, err := os.Lstat(filepath.Join(b.node().RunDir(), g.Domain+".xml"))
		return !errors.Is(err, fs.ErrNotExist)
	}
	go func() {
		defer close(last)
		if node.Poll(b.Context(), 2*time.Minute, func() bool { return !slices.ContainsFunc(guests, there) }) {
			last <- time.Now()
		}
	}()
	return last
}

// agentKills gives the agent a record in mid-grace of each guest.
func (b *bench) agentKills(guests []*node.Guest, deadline grace.Mono, wall time.Time) {
	// Cleanups run in reverse order: the cgroup is removed after the agent has ended.
	program := b.contained(filepath.Join(b.bin, "node-agent"))
	agent := b.node().Agent(b, "--shutdown-retry-interval=1h")
	agent.Path = program
	store, _, err := gracecache.Take(durable.Real(), agent.StateDir)
	if err == nil {
		err = store.MakeWritable()
	}
	b.must(err)
	b.parallel(guests, func(g *node.Guest) error {
		rec := b.record(0, grace.Instance{UUID: g.UUID, PID: g.PID, Start: g.StartTime})
		rec.Namespace, rec.Name, rec.UID = g.Namespace, g.Name, g.UID
		rec.Shutdown.Deadline, rec.Shutdown.DeadlineAt = deadline, wall
		return store.Put(rec)
	})
	b.must(store.Close())
	for _, g := range guests {
		agent.Launcher(b, g).Touch(b)
	}
	agent.Start(b)
	b.early(deadline)
}

func (b *bench) floorKills(guests []*node.Guest, deadline grace.Mono, _ time.Time) {
	args := []string{strconv.FormatInt(int64(deadline), 10)}
	for _, g := range guests {
		args = append(args, strconv.Itoa(g.PID))
	}
	command := b.floor("kill", args...)
	command[0] = b.contained(command[0])
	floor := b.start(command)
	b.early(deadline)
	if code, ok := floor.Exited(time.Minute); !ok || code != 0 {
		b.Fatalf("floor: status %d: %s", code, floor.Log())
	}
}

// virshKills starts one virsh destroy for each guest at the deadline.
func (b *bench) virshKills(guests []*node.Guest, deadline grace.Mono, _ time.Time) {
	b.early(deadline)
	b.pause(deadline.Sub(b.now()))
	b.parallel(guests, func(g *node.Guest) error {
		_, err := b.node().TryVirsh(b.Context(), "destroy", g.Domain)
		return err
	})
}

// early fails the row where the preparations lasted until the deadline.
func (b *bench) early(deadline grace.Mono) {
	b.Helper()
	if b.now() >= deadline {
		b.Fatalf("%d guests were not prepared %v ahead of their deadline", b.guests, ahead)
	}
}
