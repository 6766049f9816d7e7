package crash

import (
	"os"
	"strconv"
	"testing"

	"github.com/vmgrace/vmgrace/test/kills"
	"github.com/vmgrace/vmgrace/test/node"
)

// killsOf returns how often the agent is killed: VMGRACE_KILLS, 50 by default.
func killsOf(t *testing.T) int {
	t.Helper()
	text := os.Getenv("VMGRACE_KILLS")
	if text == "" {
		return 50
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("VMGRACE_KILLS: %v", err)
	}
	return n
}

func TestSIGKILLsAtRandomTimesBreakNothingHoweverOften(t *testing.T) {
	r := kills.Run(t, node.New(t), killsOf(t))
	t.Log(r)
	for _, v := range r.Violations {
		t.Error(v)
	}
}
