package acceptance

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// That the points are there under their build tag is shown by test/faults/crash,
// which kills the agent at each of them.
func TestTheReleaseHasNoFailpoints(t *testing.T) {
	binary := node.Binary(t, "node-agent")
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte("VMGRACE_FAILPOINT")) {
		t.Error("the node-agent reads VMGRACE_FAILPOINT")
	}
	symbols, err := exec.CommandContext(t.Context(), "go", "tool", "nm", binary).Output()
	if err != nil || len(symbols) == 0 {
		t.Fatalf("go tool nm: %v, %d bytes", err, len(symbols))
	}
	if bytes.Contains(symbols, []byte("internal/failpoint.")) {
		t.Error("the node-agent has functions of package failpoint")
	}
}
