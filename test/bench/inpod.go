package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/test/node"
)

const (
	// inPods is the number of guests of each kind in row n.
	inPods = 30
	// inPodGrace is the grace period of the deaf guests.
	inPodGrace = 6 * time.Second
)

// inPod measures row n: two kinds of VMs, in turns. The QEMU of ours is in its launcher.
// The peer is VMs of the node's libvirt.
func inPod(b *bench) []figure {
	line := func(what string, u unit) figure {
		return figure{row: "n", what: fmt.Sprintf("%d VMs in their launchers: %s", inPods, what), unit: u, peerName: "of libvirt"}
	}
	p50, p99 := line("trigger → power button at QEMU's monitor (peer: at libvirt), p50", seconds), line("the same, p99", seconds)
	last := line("deaf: last SIGTERM sent after its deadline", seconds)
	cpu, wake, anon := line("idle: CPU of the agent, of a core", percent), line("idle: wake-ups of the agent", perSecond), line("idle: anonymous memory of the agent (RssAnon)", mebibytes)
	shim, rss := line("idle: wake-ups of one shim", perSecond), line("idle: RSS of one shim", mebibytes)
	all := line("idle: CPU of agent and launchers, of a core", percent)
	for n := range b.rounds {
		for _, k := range []struct {
			vms   func(*bench, *node.Agent) []*node.VM
			asked func(*bench) []float64
			into  func(*figure) *[]float64
			args  []string
		}{
			{(*bench).inside, (*bench).asksInside, func(f *figure) *[]float64 { return &f.ours }, []string{"--libvirt-uri="}},
			{(*bench).beside, (*bench).asksBeside, func(f *figure) *[]float64 { return &f.peer }, nil},
		} {
			add := func(f *figure, v float64) { *k.into(f) = append(*k.into(f), v) }
			took := k.asked(b)
			add(&p50, quantile(took, 0.5))
			add(&p99, quantile(took, 0.99))
			b.round(func(b *bench) {
				agent := b.node().Agent(b, append([]string{"--default-grace-period=" + inPodGrace.String()}, k.args...)...)
				vms := k.vms(b, agent)
				b.guarded(agent)
				if n == 0 { // idle as in row f, only once
					b.pause(settle)
					atRest := b.rest(agent, vms)
					add(&cpu, atRest.cpu)
					add(&wake, atRest.wakeups)
					add(&anon, b.anonymous(agent.Process))
					add(&shim, atRest.shim)
					add(&all, atRest.all)
					add(&rss, b.memory(vms[0].Shim))
				}
				add(&last, b.lastSignal(agent, vms))
			})
		}
	}
	return []figure{p50, p99, last, cpu, wake, anon, shim, rss, all}
}

func benchGuest() node.Spec { return node.Spec{Namespace: "vmgrace-bench", Firmware: true} }

func (b *bench) inside(agent *node.Agent) []*node.VM {
	b.Helper()
	vms := make([]*node.VM, 0, inPods)
	for range inPods {
		vms = append(vms, agent.LaunchInside(b, benchGuest()))
	}
	return vms
}

func (b *bench) beside(agent *node.Agent) []*node.VM {
	b.Helper()
	vms := make([]*node.VM, 0, inPods)
	for _, g := range b.firmware(inPods) {
		vms = append(vms, b.shipped(agent, g))
	}
	return vms
}

func (b *bench) guarded(agent *node.Agent) {
	b.Helper()
	agent.Start(b)
	node.Eventually(b, time.Minute, func() bool { return len(agent.Status(b)) == inPods }, "%d guests are guarded", inPods)
}

// quiet is what an agent and its shims use in a second while nothing happens.
type quiet struct{ cpu, wakeups, shim, all float64 }

func (b *bench) rest(agent *node.Agent, vms []*node.VM) quiet {
	b.Helper()
	shims := make([]*node.Process, 0, len(vms))
	for _, v := range vms {
		shims = append(shims, v.Shim)
	}
	begin, before, shimsBefore := time.Now(), b.used(agent.Process), b.used(shims...)
	b.pause(b.idle)
	after, shimsAfter, took := b.used(agent.Process), b.used(shims...), time.Since(begin).Seconds()
	cpu, shimsCPU := (after.cpu-before.cpu)/took, (shimsAfter.cpu-shimsBefore.cpu)/took
	return quiet{cpu, (after.wakeups - before.wakeups) / took, (shimsAfter.wakeups - shimsBefore.wakeups) / took / float64(len(shims)), cpu + shimsCPU}
}

// lastSignal ends all VMs, which are deaf. It returns how long after its own deadline the
// last SIGTERM was sent.
func (b *bench) lastSignal(agent *node.Agent, vms []*node.VM) (late float64) {
	b.Helper()
	signals := node.ListSignals(b)
	for _, v := range vms {
		v.SignalShim(b)
	}
	deadlines := map[string]time.Duration{}
	node.Eventually(b, inPodGrace, func() bool {
		loaded, err := gracecache.Read(agent.StateDir)
		for _, r := range loaded.Records {
			if r.ShuttingDown() {
				deadlines[r.Domain()] = time.Duration(r.Shutdown.Deadline)
			}
		}
		return err == nil && len(deadlines) == len(vms)
	}, "all shutdowns have begun")
	for _, v := range vms {
		v.WaitGone(b, time.Minute)
		sent, ok := signals.Sent(b, v.Guest, unix.SIGTERM)
		if !ok {
			b.Fatalf("nobody sent %s a SIGTERM", v.Domain)
		}
		late = max(late, (sent - deadlines[v.Domain]).Seconds())
	}
	return late
}

// asksBeside returns how long requests take from the trigger to libvirt.
func (b *bench) asksBeside() (took []float64) {
	b.Helper()
	took, _ = b.reactions(inPods)
	return took
}

// asksInside returns how long requests take from the trigger to the monitor, as reactions
// does. The bench plays the monitor.
func (b *bench) asksInside() (took []float64) {
	b.Helper()
	b.round(func(b *bench) {
		agent := b.node().Agent(b, "--libvirt-uri=", "--shutdown-retry-interval=1h", "--default-grace-period=1h")
		var vms []*node.VM
		var monitors []chan time.Time
		for range inPods {
			socket, pressed := b.monitor()
			vms, monitors = append(vms, agent.LaunchInside(b, benchGuest(), "--ask-with=qmp:"+socket)), append(monitors, pressed)
		}
		b.guarded(agent)
		for i, v := range vms {
			begin := b.trigger(v.Launcher.Dir, b.written(v.Guest))
			select {
			case at := <-monitors[i]:
				took = append(took, at.Sub(begin).Seconds())
			case <-time.After(time.Minute):
				b.Fatalf("no request reaches the monitor of %s", v.Domain)
			}
		}
	})
	return took
}

// monitor answers like QEMU's monitor and says when the power button is pressed.
func (b *bench) monitor() (socket string, pressed chan time.Time) {
	b.Helper()
	socket, pressed = filepath.Join(b.temp(), "qmp"), make(chan time.Time, 1)
	l, err := net.Listen("unix", socket)
	b.must(err)
	b.Cleanup(func() { b.must(l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if at, ok := speakQMP(conn); ok {
				pressed <- at
			}
		}
	}()
	return socket, pressed
}

// speakQMP holds one QMP session and returns when the power button was pressed in it.
func speakQMP(conn net.Conn) (pressed time.Time, ok bool) {
	defer conn.Close()
	fmt.Fprintf(conn, "{\"QMP\": {}}\r\n")
	id := 0
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if strings.Contains(lines.Text(), "system_powerdown") {
			pressed, ok = time.Now(), true
		}
		id++ // the shim counts its commands in the same way
		if _, err := fmt.Fprintf(conn, "{\"return\": {\"status\": \"running\"}, \"id\": %d}\r\n", id); err != nil {
			fmt.Fprintln(os.Stderr, "bench: monitor:", err)
			return pressed, ok
		}
	}
	return pressed, ok
}
