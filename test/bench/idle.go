package main

import (
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// settle is how long an agent rests after its start: it closes unused connections after 4 s
// and lists less often after 20 s.
const settle = 30 * time.Second

// idle measures row f: real guests with their shims, and nothing happens.
func idle(b *bench) []figure {
	guests := b.firmware(2 * b.guests)
	agent := b.node().Agent(b)
	shims := make([]*node.Process, 0, len(guests))
	for _, g := range guests {
		shims = append(shims, b.shipped(agent, g).Shim)
	}
	b.guards(agent, guests)
	// The floor only waits for inotify events.
	floor := b.start(b.floor("react", b.node().Socket(), agent.LaunchersDir, b.temp()))
	b.pause(settle)

	line := func(what, target string, u unit) figure {
		return figure{row: "f", what: fmt.Sprintf("idle with %d guests: %s", len(guests), what), target: target, unit: u}
	}
	cpu, wake := line("CPU, of a core", "≤ 0.2 %", percent), line("wake-ups", "≤ 20/s", perSecond)
	shim, rss := line("wake-ups of one shim", "≤ 1/s", perSecond), line("RSS", "", mebibytes)
	all := line("CPU of agent and launchers, of a core", "≤ 0.5 %", percent)
	anon := line("anonymous memory (RssAnon)", "", mebibytes)
	begin := time.Now()
	before, floorBefore, shimsBefore := b.used(agent.Process), b.used(floor), b.used(shims...)
	b.pause(b.idle)
	after, floorAfter, shimsAfter := b.used(agent.Process), b.used(floor), b.used(shims...)
	took := time.Since(begin).Seconds()
	cpu.ours, cpu.floor = []float64{(after.cpu - before.cpu) / took}, []float64{(floorAfter.cpu - floorBefore.cpu) / took}
	wake.ours, wake.floor = []float64{(after.wakeups - before.wakeups) / took}, []float64{(floorAfter.wakeups - floorBefore.wakeups) / took}
	shim.ours = []float64{(shimsAfter.wakeups - shimsBefore.wakeups) / took / float64(len(shims))}
	all.ours = []float64{(after.cpu - before.cpu + shimsAfter.cpu - shimsBefore.cpu) / took}
	rss.ours, rss.floor = []float64{b.memory(agent.Process)}, []float64{b.memory(floor)}
	anon.ours, anon.floor = []float64{b.anonymous(agent.Process)}, []float64{b.anonymous(floor)}
	return []figure{cpu, wake, anon, rss, shim, all}
}

// usage is processor time in seconds and the number of times that threads have waited.
type usage struct{ cpu, wakeups float64 }

func (b *bench) used(processes ...*node.Process) usage {
	b.Helper()
	var u usage
	for _, p := range processes {
		u.cpu += b.cpu(p.PID())
		u.wakeups += float64(b.wakeups(p.PID()))
	}
	return u
}

func (b *bench) memory(p *node.Process) float64 {
	b.Helper()
	return float64(b.status(p.PID(), "VmRSS:")) * 1024
}

func (b *bench) anonymous(p *node.Process) float64 {
	b.Helper()
	return float64(b.status(p.PID(), "RssAnon:")) * 1024
}
