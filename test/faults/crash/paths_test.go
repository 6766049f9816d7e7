package crash

import (
	"slices"
	"syscall"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// crashGrace is the grace period of the guests in the matrix that end at their deadline.
const crashGrace = 3 * time.Second

// destroyTimeout is how long a frozen QEMU gets between SIGTERM and SIGKILL.
const destroyTimeout = time.Second

// late bounds how late a signal may be. The lateness of the machine is added to it, see
// node.Lateness: no core is free while a whole round of guests and agents runs.
const late = 50 * ms

// path is one way from cause to cleanup, with the points that the agent passes on it.
type path struct {
	name   string
	spec   node.Spec
	args   []string      // flags of the agent
	before func(*crash)  // what happens to the VM before the trigger
	after  func(*crash)  // what happens to the VM once the shutdown has begun
	frozen bool          // only SIGKILL ends QEMU
	hidden bool          // no file names the QEMU process, so libvirt has to destroy it
	own    bool          // the VM ends by itself
	grace  time.Duration // its grace period, if not crashGrace
	inside bool          // its QEMU is in its launcher, and the agent has no libvirt
	// request says that the guest ends because it was asked. If the agent dies before it
	// notes the request, and the next one starts after the guest's end, none knows of it.
	request bool
	points  []string
	// outcomes are the allowed outcomes. An agent may be killed after the end of the
	// guest, or after what caused it, and before it has noted this. Then the next agent can
	// judge only by what it finds.
	outcomes []string
	// armedBy is the launcher's file that arms the points when it appears, by default the
	// trigger. With another file, the agent dies while the VM is at rest.
	armedBy string
	// back says that the points are those of an agent that starts in the grace period.
	back   bool
	round  int           // how many VMs run at once
	cause  string        // as status.json states it
	notice time.Duration // how soon a running agent notices the cause
}

// write returns the points of all steps of a durable write, in order.
func write(stage string) []string {
	var names []string
	for _, step := range []string{"create", "chmod", "write", "written-half", "fsync", "close", "rename", "fsyncdir", "done"} {
		names = append(names, stage+"."+step)
	}
	return names
}

// call returns the point before each call and the one after it.
func call(names ...string) (both []string) {
	for _, name := range names {
		both = append(both, name, name+".done")
	}
	return both
}

func paths() []path {
	remove := []string{"delete.unlink", "delete.fsyncdir", "delete.done"}
	all := []path{
		{
			name: "noted", spec: node.Spec{Firmware: true}, round: 6, armedBy: "vm.json", outcomes: []string{"Forced"},
			points: slices.Concat(write("put-running"), call("status-Running")),
		}, {
			name: "forced", spec: node.Spec{Firmware: true}, round: 8, outcomes: []string{"Forced"},
			points: slices.Concat(
				call("hint-launcher", "look"), write("put-begun"), call("status-ShuttingDown", "ask"), write("put-requested"),
				call("get", "SIGTERM", "status-Stopped", "remove-trigger"), remove),
		}, {
			name: "forced, the second agent", spec: node.Spec{Firmware: true}, round: 8, back: true, outcomes: []string{"Forced"},
			points: slices.Concat([]string{"open.mkdir", "open.unlink"}, write("open")[:8],
				call("hint-launcher", "look", "get", "list", "open-process", "ask", "SIGTERM", "status-Stopped", "remove-trigger"), remove),
		}, {
			name: "frozen", spec: node.Spec{Firmware: true}, args: []string{"--destroy-timeout=" + destroyTimeout.String()}, round: 8, frozen: true, outcomes: []string{"Forced"},
			before: func(c *crash) { c.Signal(c.t, syscall.SIGSTOP) },
			points: slices.Concat(call("SIGTERM", "status-Destroying"), write("put-signalled"), call("SIGKILL", "status-Stopped")),
		}, {
			name: "unidentified", spec: node.Spec{Firmware: true}, hidden: true, round: 8, outcomes: []string{"Forced"},
			points: call("destroy"),
		}, {
			name: "paused", spec: node.Spec{Firmware: true}, round: 8, outcomes: []string{"Forced"},
			before: func(c *crash) { c.Virsh(c.t, "suspend") },
			points: call("resume"),
		}, {
			name: "lost", spec: node.Spec{Firmware: true}, round: 8, own: true, outcomes: []string{"Lost"},
			after:  func(c *crash) { c.Signal(c.t, syscall.SIGSEGV) },
			points: call("ended"),
		}, {
			name: "graceful", spec: node.Spec{Behaviour: "slow=1"}, grace: 30 * time.Second, round: 5, own: true, request: true, outcomes: []string{"Graceful"},
			points: slices.Concat(call("ask"), []string{"put-requested.create", "put-requested.rename", "put-requested.done"},
				call("hint-domain"), []string{"status-Stopped", "remove-trigger", "delete.unlink"}),
		}, {
			// Only what differs between the two kinds of VM: how the agent finds the
			// process and how it asks it.
			name: "in its launcher", spec: node.Spec{Firmware: true}, args: []string{"--libvirt-uri="}, inside: true, round: 8, outcomes: []string{"Forced"},
			points: slices.Concat(call("look", "ask"), []string{"put-begun.rename", "put-begun.done", "put-requested.rename"}),
		}, {
			// No libvirt logs the signal, so the next agent may not know of it.
			name: "in its launcher, signalled", spec: node.Spec{Firmware: true}, args: []string{"--libvirt-uri="}, inside: true, round: 8, outcomes: []string{"Forced", "Lost"},
			points: call("SIGTERM"),
		}, {
			name: "in its launcher, the second agent", spec: node.Spec{Firmware: true}, args: []string{"--libvirt-uri="}, inside: true, round: 8, back: true, outcomes: []string{"Forced"},
			points: call("look", "get", "open-process", "ask"),
		},
	}
	for i := range all {
		all[i].cause, all[i].notice = "LauncherSignal", time.Second
	}
	return all
}
