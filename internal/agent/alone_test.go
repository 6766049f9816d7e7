package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/fake"
)

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
