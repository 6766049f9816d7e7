package acceptance

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A deadline must not wait for a page of the program from a disk that hangs. Of each
// mapping the kernel says whether it is locked ("lo", proc(5)). Where it refuses that
// (no CAP_SYS_RESOURCE), the log says so, and says it nowhere else.
func TestTheAgentsProgramIsLockedInMemoryOrItSaysThatItIsNot(t *testing.T) {
	a := shared.Agent(t).Start(t)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", a.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// Each mapping is a line with its file, more lines, and its flags.
	mappings := regexp.MustCompile(`(?m)^[0-9a-f]+-[0-9a-f]+ .*node-agent$(?s:.*?)^VmFlags: (.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(mappings) == 0 {
		t.Fatal("the kernel shows no mapping of the program")
	}
	refused := a.Said("memory is not locked") == 1
	for _, m := range mappings {
		if locked := slices.Contains(strings.Fields(m[1]), "lo"); locked == refused {
			t.Errorf("a mapping of the program is locked: %t, and the log says that locking was refused: %t", locked, refused)
		}
	}
	t.Logf("locking was refused: %t", refused)
}
