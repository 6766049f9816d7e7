package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/kit"
)

// Given an agent with CAP_IPC_LOCK. Then its program is locked in memory, so that no
// deadline waits for a page of the program from a disk that hangs. Given an agent without
// CAP_IPC_LOCK. Then it says that its memory is not locked.
func TestTheAgentsProgramIsLockedInMemoryOrItSaysThatItIsNot(t *testing.T) {
	const said = "memory is not locked"

	a := shared.Agent(t).Start(t)
	if locked, all := lockedMappings(t, a.PID()); locked < all || a.Said(said) != 0 {
		t.Errorf("with the right to, %d of %d mappings of the program are locked, and the agent said:\n%s", locked, all, a.Log())
	}

	b := shared.Agent(t)
	without := filepath.Join(shared.Dir, "without-ipc-lock")
	script := fmt.Sprintf("#!/bin/sh\nexec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock %s \"$@\"\n", b.Path)
	kit.Program(t, without, script)
	b.Path = without
	b.Start(t)
	if locked, _ := lockedMappings(t, b.PID()); locked != 0 || b.Said(said) != 1 {
		t.Errorf("without CAP_IPC_LOCK, %d mappings of the program are locked, and the agent said:\n%s", locked, b.Log())
	}
}

// lockedMappings returns how many mappings the agent's program has, and how many of them
// are locked: their flags in smaps have "lo" (proc(5)).
func lockedMappings(t *testing.T, pid int) (locked, all int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Each mapping is a line with its file, more lines, and its flags.
	mappings := regexp.MustCompile(`(?m)^[0-9a-f]+-[0-9a-f]+ .*node-agent$(?s:.*?)^VmFlags: (.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(mappings) == 0 {
		t.Fatal("the kernel shows no mapping of the program")
	}
	for _, m := range mappings {
		if slices.Contains(strings.Fields(m[1]), "lo") {
			locked++
		}
	}
	return locked, len(mappings)
}
