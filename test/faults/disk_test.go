package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// disk is a small tmpfs for the agent's state directory, and the scripts that break and
// repair it. The scripts run inside the node with the state directory as $1.
type disk struct {
	options       string // mount options of the tmpfs
	spoil, repair string
}

var disks = map[string]disk{
	"full": {
		options: "size=64k",
		spoil:   `! cat /dev/zero >"$1/filler" 2>/dev/null`,
		repair:  `rm "$1/filler"`,
	},
	"without inodes": {
		options: "nr_inodes=12",
		spoil:   `i=0; while touch "$1/filler-$i" 2>/dev/null; do i=$((i+1)); [ $i -lt 12 ] || exit 1; done`,
		repair:  `rm "$1"/filler-*`,
	},
	"read-only": {
		options: "size=64k",
		spoil:   `mount -o remount,ro "$1"`,
		repair:  `mount -o remount,rw "$1"`,
	},
}

func inside(t *testing.T, n *node.Node, script, dir string) {
	t.Helper()
	if out, err := n.Command("sh", "-c", script, "sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// agentOn prepares an agent whose state directory is on this disk.
func agentOn(t *testing.T, n *node.Node, d disk) *node.Agent {
	t.Helper()
	a := n.Agent(t)
	inside(t, n, "mount -t tmpfs -o "+d.options+` vmgrace-test "$1"`, a.StateDir)
	return a
}

const (
	cannotWrite = "cannot write the record"
	writesFail  = `vmgrace_rejected_total{reason="record_write"}`
)

// unready waits until /readyz says that a record cannot be written.
func unready(t *testing.T, a *node.Agent) {
	t.Helper()
	node.Eventually(t, soon, func() bool {
		code, body, err := a.Get(context.Background(), "/readyz")
		return err == nil && code == http.StatusServiceUnavailable && strings.Contains(body, "a record cannot be written")
	}, "/readyz does not say that a record cannot be written")
}

// freed waits until the agent has closed the record files that it replaced. A file that it
// closes later would free space on a full disk. An open one keeps the disk from being
// remounted read-only.
func freed(t *testing.T, a *node.Agent) {
	t.Helper()
	node.Eventually(t, soon, func() bool {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", a.PID()))
		if err != nil || len(fds) == 0 {
			t.Fatalf("cannot see what the agent has open: %v", err)
		}
		return !slices.ContainsFunc(fds, func(fd string) bool {
			target, _ := os.Readlink(fd) // the agent may have closed it meanwhile
			return strings.HasSuffix(target, ".json (deleted)")
		})
	}, "the agent keeps files that were replaced")
}

// persisted waits until this deadline of status.json is on disk too, and the agent is ready
// again.
func persisted(t *testing.T, a *node.Agent, v *node.VM, deadline string) {
	t.Helper()
	node.Eventually(t, soon, func() bool { s, ok := a.StatusOf(t, v.Guest); return ok && s.Deadline == deadline },
		"the deadline %s of %s is not on disk", deadline, v.Domain)
	node.Eventually(t, soon, a.Ready, "the agent is not ready again")
}

// onTime waits for QEMU's SIGTERM and checks that it was sent at the deadline, which
// status.json states to the millisecond, or at most 50 ms later.
func onTime(t *testing.T, v *node.VM, deadline string) {
	t.Helper()
	v.WaitTerminated(t, node.WallTime(t, deadline), late)
}

func TestADiskThatFailsBeforeTheShutdownCostsNothing(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	for name, d := range disks {
		t.Run(name, func(t *testing.T) {
			// Given
			a := agentOn(t, n, d).Start(t)
			short := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=6")
			long := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=15")
			freed(t, a)
			inside(t, n, d.spoil, a.StateDir)
			// When
			fromShort := short.SignalShim(t)
			long.SignalShim(t)
			// Then both shutdowns go on from memory, and the agent reports this.
			first, deadline := short.WaitBegun(t), long.WaitBegun(t)
			unready(t, a)
			if got := a.Metrics(t)[writesFail]; got != 2 {
				t.Errorf("%s is %v, want one for each VM", writesFail, got)
			}
			// This must be read before the end of a VM frees space for another record.
			if s, ok := a.StatusOf(t, long.Guest); !ok || s.Phase != "Running" {
				t.Errorf("on disk is %+v, %v: the disk was not spoilt", s, ok)
			}
			onTime(t, short, first)
			if sent, ok := short.Sent(t, unix.SIGTERM); !ok || sent.Before(fromShort.Add(6*time.Second)) {
				t.Errorf("SIGTERM (%v) after %v, before the grace period was over", ok, sent.Sub(fromShort))
			}
			// And once the disk is repaired, the agent writes the record still in force.
			inside(t, n, d.repair, a.StateDir)
			persisted(t, a, long, deadline)
			onTime(t, long, deadline)
			short.WaitStopped(t, "LauncherSignal", "Forced")
			long.WaitStopped(t, "LauncherSignal", "Forced")
			if said := a.Said(cannotWrite); said != 2 {
				t.Errorf("%d lines about it, want one for each VM", said)
			}
			node.Eventually(t, soon, func() bool { return len(a.Status(t)) == 0 }, "a record is left of a VM that stopped")
		})
	}
}

func TestAnAgentRestartedOnABadDiskGoesOnFromWhatIsThere(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	for name, d := range disks {
		t.Run(name, func(t *testing.T) {
			// Given a VM in its grace period and a VM at rest.
			a := agentOn(t, n, d).Start(t)
			ending := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=10")
			resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=4")
			ending.SignalShim(t)
			deadline := ending.WaitBegun(t)
			freed(t, a)
			inside(t, n, d.spoil, a.StateDir)
			// When
			a.Kill()
			a.Launch(t)
			// Then
			unready(t, a)
			resting.SignalShim(t)
			onTime(t, resting, resting.WaitBegun(t))
			a.WaitSaid(t, "going on from memory", 1) // while it starts, or at its first write
			onTime(t, ending, deadline)
			ending.WaitOutcome(t, "LauncherSignal", "Forced")
			resting.WaitOutcome(t, "LauncherSignal", "Forced")
			if got := ending.Launcher.Status().Deadline; got != deadline {
				t.Errorf("the deadline was %s and is %s", deadline, got)
			}
			inside(t, n, d.repair, a.StateDir)
			node.Eventually(t, soon, a.Ready, "the agent is not ready again")
			node.Eventually(t, soon, func() bool { return len(a.Status(t)) == 0 }, "a record is left of a VM that stopped")
		})
	}
}

func TestADeletedStateDirectoryComesBackWithEveryRecord(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	for name, script := range map[string]string{
		"deleted":               `rm -r "$1"`,
		"deleted and recreated": `rm -r "$1"; mkdir -p "$1"`,
		"emptied":               `rm -r "$1"/* "$1"/.lock`,
		"replaced":              `mv "$1" "$1-away"; mkdir -p "$1"`,
		"mounted over":          `mount -t tmpfs vmgrace-test "$1"`,
	} {
		t.Run(name, func(t *testing.T) {
			// Given
			a := n.Agent(t).Start(t)
			ending := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=10")
			resting := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=30")
			ending.SignalShim(t)
			deadline := ending.WaitBegun(t)
			persisted(t, a, ending, deadline)
			// When
			inside(t, n, script, a.StateDir)
			// Then
			a.WaitSaid(t, "removed or replaced", 1)
			persisted(t, a, ending, deadline)
			if s, ok := a.StatusOf(t, resting.Guest); !ok || s.Phase != "Running" {
				t.Errorf("the VM at rest: %+v, %v", s, ok)
			}
			if a.Metrics(t)[writesFail] == 0 {
				t.Errorf("%s is 0", writesFail)
			}
			// And the new records keep the deadline over a restart, as the lost ones did.
			a.Restart(t)
			onTime(t, ending, deadline)
			ending.WaitStopped(t, "LauncherSignal", "Forced")
			if resting.Gone() {
				t.Error("the VM at rest is gone")
			}
		})
	}
}

func TestAStateDirectoryThatCannotComeBackAtOnceComesBackLater(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	a := n.Agent(t).Start(t)
	v := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=10")
	v.SignalShim(t)
	deadline := v.WaitBegun(t)
	// The loop repeats this because the agent may create the directory before touch runs.
	inside(t, n, `until rm -rf "$1" && touch "$1" && [ -f "$1" ]; do :; done`, a.StateDir)
	unready(t, a)
	inside(t, n, `rm "$1"`, a.StateDir)
	a.WaitSaid(t, "removed or replaced", 1)
	persisted(t, a, v, deadline)
	onTime(t, v, deadline)
	v.WaitStopped(t, "LauncherSignal", "Forced")
}
