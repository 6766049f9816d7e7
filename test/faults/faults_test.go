package faults

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// late is how long after its deadline a SIGTERM may come, and no fault makes it
// longer: the contract's bound. What the machine is late comes on top, see node.Lateness.
const late = 50 * time.Millisecond

// soon is how long things may take that have no promised time.
const soon = 30 * time.Second

// usage is what a process holds.
type usage struct{ fds, threads, rss int }

func use(t *testing.T, p *node.Agent) usage {
	t.Helper()
	proc := "/proc/" + strconv.Itoa(p.PID())
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir(proc + "/task")
	if err != nil {
		t.Fatal(err)
	}
	return usage{len(fds), len(threads), p.Resident(t)}
}
