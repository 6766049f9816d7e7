//go:build nightly

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given five VMs in their pods: one writes much memory, one counts on a disk that both nodes see,
// one is paused by its user. When their node is drained, then all five move, no more than two at
// once, and the paused one stays paused.
func TestADrainMovesFiveVMsInTheirPods(t *testing.T) {
	w := given(t)
	w.controller()
	w.withoutLibvirt()
	w.sharedDisk("disk")
	disk := w.whole(w.a, "disk", "disk=count", withDisk("disk")...)
	all := w.wholes(w.a, map[string]string{"one": "polite", "two": "polite", "busy": "busy=8", "paused": "polite"})
	disk.movable()
	all["disk"] = disk
	paused := all["paused"]
	paused.user("stop")
	w.afterwards("uncordon", w.a.Name)
	w.vmdrain(w.a, func() { w.twoLeave(w.a) })
	for _, v := range all {
		if v != paused {
			v.moved(w.b)
		}
	}
	w.step("four guests go on")
	node.Eventually(t, soon, func() bool { return paused.vmi("{.status.phase} {.status.nodeName}") == "Running "+w.b.Name }, "the paused one is not moved")
	paused.on = w.b
	node.Never(t, 3*time.Second, func() bool { return paused.uptime() >= 0 }, "it does not stay paused")
	paused.user("cont")
	paused.on = w.a
	paused.moved(w.b)
	for name, v := range all {
		if n := v.asked(); n != 0 {
			t.Errorf("%s: %d Events of a shutdown", name, n)
		}
		v.w.delete("vmi/" + name)
	}
	for _, v := range all {
		v.gone()
	}
	w.step("deleted")
}

// user does to the VM's QEMU what a user does with a monitor of his own.
func (v *whole) user(command string) {
	v.w.Helper()
	pod := v.get("pod", v.pod(), "{.metadata.uid}")
	qemu := (&alone{w: v.w, name: v.name, uid: pod}).qemu()
	node.Monitor(v.w, fmt.Sprintf("/proc/%d/root/run/vm/qmp.sock", qemu), command)
}
