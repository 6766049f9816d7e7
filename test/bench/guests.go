package main

import (
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/test/node"
)

// firmware starts n deaf guests.
func (b *bench) firmware(n int) []*node.Guest {
	b.Helper()
	guests := make([]*node.Guest, 0, n)
	for range n {
		guests = append(guests, b.node().Start(b, node.Spec{Namespace: "vmgrace-bench", Firmware: true}))
	}
	return guests
}

// guards makes a launcher directory for each guest, starts the agent and waits until it has
// a record of each guest.
func (b *bench) guards(agent *node.Agent, guests []*node.Guest) {
	b.Helper()
	for _, g := range guests {
		agent.Launcher(b, g)
	}
	agent.Start(b)
	node.Eventually(b, time.Minute, func() bool { return len(agent.Status(b)) == len(guests) }, "%d guests are guarded", len(guests))
}

// start runs one of the bench's own programs until the row ends.
func (b *bench) start(argv []string) *node.Process {
	b.Helper()
	p, err := node.StartProcess(exec.CommandContext(b.Context(), argv[0], argv[1:]...), filepath.Join(b.temp(), "log"))
	b.must(err)
	b.Cleanup(p.Kill)
	return p
}

// parallel runs f for all guests at the same time.
func (b *bench) parallel(guests []*node.Guest, f func(*node.Guest) error) {
	b.Helper()
	var group errgroup.Group
	for _, g := range guests {
		group.Go(func() error { return f(g) })
	}
	b.must(group.Wait())
}
