package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/fake"
)

// Given a launcher that knows only its own pod, whose VMI comes later. Then the VM has the VMI's
// grace period, its launcher's signal counts, and its launcher is told under the name that it
// knows. Otherwise the pod would be killed with its guest: its trigger would be a leftover.
func TestAPodThatNamesItselfIsItsVMIsOnceThatComes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		c := &memoryCluster{synced: true, fate: grace.FateHere}
		c.pods = []grace.Pod{{UID: pod1, Created: born, DeletingAt: grace.Never, KillAt: grace.Never, GracePeriod: time.Hour}}
		r.cluster = c
		r.dirs = map[string]*memoryDir{}
		r.pod(pod1, pod1)
		r.run()
		r.agent.ClusterChanged("ns", "vm")
		r.hv.Start(fake.Guest{Name: domain})
		r.after(time.Minute)
		r.api(func(c *memoryCluster) { c.pods[0].VMI = uid })
		r.after(time.Second)
		r.api(func(c *memoryCluster) {
			c.vmi = &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: "7", DeletingAt: grace.Never}
		})
		r.after(time.Minute)
		r.untouched()
		if rec, _ := r.record(); rec.UID != uid {
			t.Errorf("the record is of %q, want the VMI", rec.UID)
		}
		r.restart()
		r.after(time.Second)
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, 7*time.Second)
		r.after(time.Minute)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)
		if said := r.podDir(pod1).said(); said.UID != pod1 {
			t.Errorf("the launcher is told about %q, and knows itself as %q", said.UID, pod1)
		}
	})
}

// A launcher pod that never had a VMI is a VM, too: a VMI that the API server never had
// was not deleted.
func TestAPodAloneIsAVM(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		c := &memoryCluster{synced: true, fate: grace.FateDeleted}
		c.pods = []grace.Pod{{UID: pod1, Created: born, DeletingAt: grace.Never, KillAt: grace.Never, GracePeriod: time.Hour}}
		r.cluster = c
		r.dirs = map[string]*memoryDir{}
		r.pod(pod1, "uid-of-the-pod")
		r.run()
		r.agent.ClusterChanged("ns", "vm") // as the watch tells of the pod
		r.hv.Start(fake.Guest{Name: domain})
		r.after(time.Minute)
		r.listed()
		r.after(time.Minute)
		r.untouched()
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, 30*time.Second)
		r.after(time.Minute)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)
	})
}
