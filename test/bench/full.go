package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// full is the number of pods that a node has at most by default.
const full = 110

// fullNode measures row o: nodes that are full of VMs are drained by kubectl vmgrace drain and by kubectl
// drain, in turns. It ends a drain when all VMs are marked and have their migrations.
func fullNode(b *bench) []figure {
	var nodes []string
	for n := range 2 * b.rounds {
		nodes = append(nodes, fmt.Sprintf("full-%d", n))
	}
	c := b.crew(nodes, full*len(nodes))
	p, _ := c.start()
	c.rest()
	line := func(what, target string, u unit) figure {
		return figure{row: "o", what: fmt.Sprintf("a node of %d VMs is drained by kubectl vmgrace drain: %s", full, what), target: target, unit: u, peerName: "kubectl drain"}
	}
	marked := line("first VM marked → last one", "", seconds)
	requests := line("requests for each VM, without the evictions", "", func(v float64) string { return fmt.Sprintf("%.1f", v) })
	evicted := line("evictions for each VM until all are marked; all are answered 429", "", func(v float64) string { return fmt.Sprintf("%.1f", v) })
	for n, name := range nodes {
		cmd := c.api.Command(c.Context(), "drain", "--force", name)
		if n%2 == 0 {
			cmd = exec.Command(filepath.Join(b.bin, "kubectl-vmgrace"), "drain", "--force", name)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+c.api.Kubeconfig)
		}
		took, asked, evictions := c.drain(p, cmd)
		if n%2 == 0 {
			marked.ours, requests.ours, evicted.ours = append(marked.ours, took), append(requests.ours, asked), append(evicted.ours, evictions)
		} else {
			marked.peer, requests.peer, evicted.peer = append(marked.peer, took), append(requests.peer, asked), append(evicted.peer, evictions)
		}
	}
	return []figure{marked, requests, evicted}
}

// drain runs a command that drains a full node until all its VMs are marked. It returns the seconds from the
// first mark to the last one, and the requests and evictions for each VM.
func (c *crew) drain(p *node.Process, cmd *exec.Cmd) (took, requests, evictions float64) {
	c.Helper()
	asked, evicted, said := c.requests(), c.evictions(), len(p.Log())
	d, err := node.StartProcess(cmd, filepath.Join(c.temp(), "log"))
	c.must(err)
	c.Cleanup(d.Kill)
	var at []time.Time
	node.Eventually(c, 2*time.Minute, func() bool { at = c.marks(p.Log()[said:]); return len(at) >= full }, "all VMs are marked")
	now := c.evictions() // before the end of the drain, which breaks off those that are under way
	d.Kill()
	c.rest()
	for code, n := range now {
		if code != "429" && n > evicted[code] {
			c.Fatalf("%v evictions were answered with %s", n-evicted[code], code)
		}
	}
	if at = c.marks(p.Log()[said:]); len(at) != full {
		c.Fatalf("%d marks of %d VMs", len(at), full)
	}
	return at[full-1].Sub(at[0]).Seconds(), (c.requests() - asked) / full, (now["429"] - evicted["429"]) / full
}

// marks returns when the controller has marked VMs, by its log.
func (c *crew) marks(log string) (at []time.Time) {
	c.Helper()
	for line := range strings.Lines(log) {
		var e struct {
			Time    time.Time
			Verdict string
		}
		if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &e) == nil && e.Verdict == "marked" {
			at = append(at, e.Time)
		}
	}
	return at
}
