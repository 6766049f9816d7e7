package faults

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// late is the contract's bound: how long after its deadline a SIGTERM may come, whatever
// fails. The lateness of the machine is added to it, see node.Lateness.
const late = 50 * time.Millisecond

// soon bounds the wait for what has no promised time.
const soon = 30 * time.Second

// usage are the resources that a process holds; rss is in bytes.
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
