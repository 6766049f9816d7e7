package faults

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// late is how long after its deadline a SIGTERM may come here. A fault that
// delays it does so by seconds; test/acceptance holds the contract's 50 ms.
const late = time.Second

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
