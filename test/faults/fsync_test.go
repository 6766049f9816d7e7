package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// failFsync makes fsync(2) fail in the agent, by strace with these additional arguments.
// mend ends this and returns the files for which fsync has failed.
func failFsync(t *testing.T, a *node.Agent, more ...string) (mend func() []string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	args := append([]string{"-f", "-qq", "-y", "-o", log, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "-p", fmt.Sprint(a.PID())}, more...)
	cmd := exec.Command("strace", args...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make deps", err)
	}
	end := func() { // strace detaches from the agent
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	node.Eventually(t, soon, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", a.PID()))
		traced := err == nil && len(threads) > 0
		for _, path := range threads {
			status, err := os.ReadFile(path)
			traced = traced && err == nil && strings.Contains(string(status), fmt.Sprintf("TracerPid:\t%d\n", cmd.Process.Pid))
		}
		return traced
	}, "strace does not hold the agent")
	return func() []string {
		end()
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, m := range regexp.MustCompile(`fsync\(\d+<(.*)>\) += -1 EIO .*INJECTED`).FindAllStringSubmatch(string(text), -1) {
			failed = append(failed, m[1])
		}
		return failed
	}
}

func TestARecordWhoseFsyncFailsIsNotTakenForWrittenUntilItIs(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	for name, onDisk := range map[string]string{"of the file": "Running", "of the directory": "ShuttingDown"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Given
			a := n.Agent(t).Start(t)
			short := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=5")
			long := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=25")
			var only []string
			if name == "of the directory" {
				only = []string{"-P", a.StateDir}
			}
			mend := failFsync(t, a, only...)
			// When
			short.SignalShim(t)
			long.SignalShim(t)
			// Then both shutdowns go on from memory, and the agent reports this.
			first, deadline := short.WaitBegun(t), long.WaitBegun(t)
			unready(t, a)
			node.Eventually(t, soon, func() bool { return a.Metrics(t)[writesFail] == 2 }, "%s is not one for each VM", writesFail)
			for _, v := range []*node.VM{short, long} {
				if s, ok := a.StatusOf(t, v.Guest); !v.Gone() && (!ok || s.Phase != onDisk) {
					t.Errorf("on disk is %+v, want %s", s, onDisk)
				}
			}
			slowly(t, short, first)
			short.WaitOutcome(t, "LauncherSignal", "Forced")
			// And once fsync works again, the agent writes the record still in force, and a
			// restarted agent keeps its deadline.
			failed := mend()
			persisted(t, a, long, deadline)
			a.Restart(t)
			slowly(t, long, deadline)
			long.WaitStopped(t, "LauncherSignal", "Forced")
			if said := a.Said(cannotWrite); said != 2 {
				t.Errorf("%d lines about it, want one for each VM", said)
			}
			node.Eventually(t, soon, func() bool { return len(a.Status(t)) == 0 }, "a record is left of a VM that stopped")
			// And the agent calls fsync only once for a file for which it failed: the
			// kernel counts the lost pages as written (fsync(2)).
			again := map[string]bool{}
			for _, path := range failed {
				if path != a.StateDir && again[path] {
					t.Errorf("%s was fsynced again", path)
				}
				again[path] = true
			}
			if t.Logf("failed %d times for %d files", len(failed), len(again)); len(failed) < 2 {
				t.Errorf("fsync failed for %q: this tests nothing", failed)
			}
		})
	}
}

// slowly is onTime for an agent that strace slows down.
func slowly(t *testing.T, v *node.VM, deadline string) {
	t.Helper()
	v.WaitTerminated(t, node.WallTime(t, deadline), time.Second) // strace stops the agent at each system call
}
