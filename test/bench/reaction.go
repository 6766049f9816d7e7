package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// reaction is row a: each guest's trigger appears by rename, once for the agent
// and once for the floor, in turns. Requests are seen on their way to libvirtd.
func reaction(b *bench) []figure {
	guests := b.firmware(2 * b.guests)
	ours, bare := b.tap(), b.tap()
	agent := b.node().Agent(b, "--libvirt-uri", "qemu+unix:///system?socket="+ours.socket,
		"--shutdown-retry-interval=1h", "--default-grace-period=1h")
	ours.state = agent.StateDir
	launchers, state := b.temp(), b.temp()
	for _, g := range guests {
		dir := filepath.Join(launchers, g.Domain)
		b.must(os.Mkdir(dir, 0o755))
		b.must(os.WriteFile(filepath.Join(dir, "uuid"), []byte(g.UUID), 0o600))
	}
	b.guards(agent, guests)
	floor := b.start(b.floor("react", bare.socket, launchers, state))
	node.Eventually(b, time.Minute, func() bool { return floor.Log() != "" }, "the floor is ready")

	var took, least []float64
	for _, g := range guests {
		begin := b.trigger(filepath.Join(agent.LaunchersDir, g.Domain))
		a := ours.next(b, g.Domain)
		if !a.recorded {
			b.Fatalf("the request for %s came before its record", g.Domain)
		}
		took = append(took, a.at.Sub(begin).Seconds())
		begin = b.trigger(filepath.Join(launchers, g.Domain))
		least = append(least, bare.next(b, g.Domain).at.Sub(begin).Seconds())
	}
	if !floor.Running() {
		b.Fatalf("the floor ended: %s", floor.Log())
	}
	line := func(what string, q float64) figure {
		return figure{
			row: "a", unit: seconds, target: "≤ 1.5 × floor", what: fmt.Sprintf("trigger → request at libvirt, record before it: %s of %d", what, len(guests)),
			ours: []float64{quantile(took, q)}, floor: []float64{quantile(least, q)},
		}
	}
	return []figure{line("p50", 0.5), line("p99", 0.99)}
}

// between is how long both sides have to come to rest between two triggers: libvirtd
// is busy with a request for 14 ms.
const between = 100 * time.Millisecond

// trigger renames a trigger into a launcher directory and says when.
func (b *bench) trigger(dir string) time.Time {
	temp := filepath.Join(dir, ".shutdown.bench")
	b.must(os.WriteFile(temp, nil, 0o600))
	b.pause(between)
	begin := time.Now()
	b.must(os.Rename(temp, filepath.Join(dir, "shutdown")))
	return begin
}
