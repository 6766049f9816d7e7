package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// nodeDown measures row m: the node powers off with guests that power off when they are
// asked. The time of ours ends when logind goes on, just after the agent has released its
// inhibitor. The time of libvirt-guests ends with the last QEMU.
func nodeDown(b *bench) []figure {
	var ours, script []float64
	for range min(b.rounds, peerRounds) {
		ours = append(ours, b.nodePowersOff())
		script = append(script, b.powerOff((*bench).scriptAsks))
	}
	return []figure{{
		row: "m", what: fmt.Sprintf("The node powers off with %d polite guests: PrepareForShutdown → the inhibitor's release (%d rounds)", b.polite, len(ours)),
		target: "≤ 0.3 × libvirt-guests", unit: seconds, ours: ours, peer: script, peerName: "libvirt-guests' stop, all in parallel",
	}}
}

func (b *bench) nodePowersOff() (took float64) {
	b.Helper()
	b.round(func(b *bench) {
		m := logind.Start(b, 2*time.Hour) // longer than the guests' grace period
		guests := b.boot(b.polite)
		agent := b.node().Agent(b, "--default-grace-period=1h", "--dbus-socket="+m.Socket)
		b.guards(agent, guests)
		node.Eventually(b, time.Minute, func() bool { return agent.Metrics(b)["vmgrace_node_shutdown_delayed"] == 1 }, "the node's shutdown is delayed")
		b.pause(bootRest)
		unix.Sync()
		begin := m.Shutdown(b, "PowerOff")
		var end time.Time
		node.Eventually(b, offTimeout, func() (down bool) { _, end, down = m.Down(b); return down }, "the node goes down")
		b.offByThemselves(guests)
		took = end.Sub(begin).Seconds()
	})
	return took
}
