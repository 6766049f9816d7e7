package acceptance

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given the release build of the agent. Then it has no failpoints, so no environment
// variable can kill it. test/faults/crash shows that the build tag adds them: it kills the
// agent at each.
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
	if bytes.Contains(symbols, []byte("internal/node/failpoint.")) {
		t.Error("the node-agent has functions of package failpoint")
	}
}
