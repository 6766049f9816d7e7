package agent

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

func podOf(vmi, name string, made time.Time) grace.Pod {
	return grace.Pod{UID: name, VMI: vmi, Created: made, DeletingAt: grace.Never, KillAt: grace.Never, GracePeriod: time.Hour}
}

func TestTheNextVMIsLauncherIsFoundAlsoWhileNoVMIIsSeen(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.cluster = &memoryCluster{pods: []grace.Pod{podOf(uid, pod1, born)}}
		r.pod(pod1, uid)
		r.pod("pod-2", "uid-2")
		r.run()
		r.after(time.Minute)
		r.api(func(c *memoryCluster) { c.pods = append(c.pods, podOf("uid-2", "pod-2", born.Add(time.Hour))) })
		r.set(pod1, func(v *watch.View) { *v = watch.View{} })
		r.api(func(c *memoryCluster) { c.pods = c.pods[1:] })
		r.hv.Start(fake.Guest{Name: domain})
		r.after(20 * time.Second)
		if rec, _ := r.record(); rec.UID != "uid-2" || rec.Pod != "pod-2" || r.cluster.watched != "pod-2" {
			t.Errorf("%+v, watched %q", rec, r.cluster.watched)
		}
	})
}

func TestAnIncomingVMIsNotTouchedBeforeItsVMIComes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.cluster = &memoryCluster{synced: true, fate: grace.FateMoved, pods: []grace.Pod{podOf(uid, pod1, born)}}
		r.pod(pod1, uid)
		r.hv.Start(fake.Guest{Name: domain})
		r.run()
		r.after(time.Minute)
		r.untouched()
		if r.cluster.asks() > 0 {
			t.Error("asked about the VMI of another node")
		}
		r.api(func(c *memoryCluster) {
			c.vmi, c.fate = &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: "77", DeletingAt: grace.Never}, grace.FateHere
		})
		r.after(time.Minute)
		r.untouched()
		if rec, _ := r.record(); rec.Period.Length != 77*time.Second || !rec.VMICreated.Equal(born) {
			t.Errorf("%+v", rec)
		}
	})
}
