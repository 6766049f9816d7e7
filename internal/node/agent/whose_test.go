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

func TestADeletionSeenLateIsNotHeldAgainstTheNextVMIsInstance(t *testing.T) {
	inCluster(t, "5", func(r *rig, c *memoryCluster) {
		// Given: the agent's watch is late. Meanwhile the VM ends, its VMI is deleted and
		// made again, and the new one's domain starts.
		r.sigterm(pod1)
		r.after(20 * time.Second)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)
		made := r.Wall()
		r.api(func(c *memoryCluster) { c.err = errDown })
		r.hv.Start(fake.Guest{Name: domain})
		r.after(20 * time.Second)
		if rec, _ := r.record(); rec.Period.Length != 5*time.Second || rec.ShuttingDown() {
			t.Errorf("guarded as %+v", rec)
		}
		r.restart()
		r.after(20 * time.Second)
		before := c.asks()
		r.api(func(c *memoryCluster) { c.err, c.fate = nil, grace.FateReplaced })
		r.after(20 * time.Second)
		if asked := c.asks() - before; asked < 5 || asked > 15 {
			t.Errorf("asked %d times in 20 s", asked)
		}
		// When the watch goes on, first with the old one's end.
		r.api(func(c *memoryCluster) { c.vmi = nil })
		r.after(time.Minute)
		r.pod("pod-2", "uid-2")
		r.api(func(c *memoryCluster) {
			c.vmi = &grace.VMI{State: grace.VMIPresent, UID: "uid-2", Created: made, Grace: "600", DeletingAt: grace.Never}
			c.pods, c.fate = []grace.Pod{podOf("uid-2", "pod-2", made)}, grace.FateHere
		})
		r.after(time.Minute)
		rec, ok := r.record()
		if !ok || rec.ShuttingDown() || rec.UID != "uid-2" || !rec.VMICreated.Equal(made) || rec.Pod != "pod-2" {
			t.Errorf("record %v %+v; want the new one's VM to be guarded", ok, rec)
		}
	})
}

func TestAPodThatDoesNotSayWhoseItIsHidesNoLauncher(t *testing.T) {
	inCluster(t, "60", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) { c.pods = append(c.pods, podOf("", "stray", born.Add(time.Hour))) })
		r.after(time.Minute)
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, time.Minute)
	})
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

func TestASignalAfterTheExpectedKillStartsKubeletsGraceAnew(t *testing.T) {
	inCluster(t, "60", func(r *rig, _ *memoryCluster) {
		// Given: kubelet was down while the pod was deleted.
		r.api(func(c *memoryCluster) { deleted(&c.pods[0], r.Now(), 50*time.Second) })
		r.after(10 * time.Minute)
		r.untouched()
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, 48*time.Second)
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

func TestAContainerRestartedWithoutAnAgentIsTheLauncherNow(t *testing.T) {
	inCluster(t, "60", func(r *rig, _ *memoryCluster) {
		r.stop()
		shim := r.hv.StartProcess("shim")
		r.set(pod1, func(v *watch.View) { v.Holder.PID, v.Holder.File = shim.PID(), 78 })
		r.run()
		r.after(time.Minute)
		r.untouched()
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, time.Minute)
	})
}

func TestAGracePeriodThatIsTakenOutOfTheVMIIsTheDefault(t *testing.T) {
	inCluster(t, "60", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) { c.vmi.Grace = "" })
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, 30*time.Second)
	})
}

func TestALivingLauncherKeepsItsPlaceBesideANewerPod(t *testing.T) {
	for name, between := range map[string]func(*rig){
		"one agent":   func(*rig) {},
		"a new agent": func(r *rig) { r.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, "60", func(r *rig, _ *memoryCluster) {
				// Given: somebody who may create pods has copied the launcher's labels.
				copied := r.pod("copy", uid)
				r.api(func(c *memoryCluster) { c.pods = append(c.pods, podOf(uid, "copy", born.Add(time.Hour))) })
				between(r)
				r.after(time.Minute)
				// When the shim in it is killed, then nothing follows.
				r.set("copy", func(v *watch.View) { v.Locked, v.Holder.PID = false, 0 })
				r.agent.LauncherChanged(domain)
				r.after(time.Minute)
				r.untouched()
				if copied.said() != (grace.Status{}) {
					t.Error("the copy is taken for the launcher")
				}
				// Then the real one's signal is heard.
				at := r.Now()
				r.sigterm(pod1)
				r.startedAs(grace.LauncherSignal, at, time.Minute)
			})
		})
	}
}

func TestALauncherThatIsBeingDeletedIsHeardUntilItEnds(t *testing.T) {
	inCluster(t, "60", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) {
			deleted(&c.pods[0], r.Now(), 10*time.Minute)
			c.pods = append(c.pods, podOf(uid, "pod-2", born.Add(time.Hour)))
		})
		r.after(time.Minute)
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, time.Minute)
	})
}

func TestALauncherThatHasEndedGivesItsPlaceToTheNext(t *testing.T) {
	inCluster(t, "60", func(r *rig, _ *memoryCluster) {
		r.pod("pod-2", uid)
		r.api(func(c *memoryCluster) {
			c.pods[0].Done = true
			c.pods = append(c.pods, podOf(uid, "pod-2", born.Add(time.Hour)))
		})
		r.after(time.Minute)
		if rec, _ := r.record(); rec.Pod != "pod-2" {
			t.Errorf("the launcher is %q", rec.Pod)
		}
		at := r.Now()
		r.sigterm("pod-2")
		r.startedAs(grace.LauncherSignal, at, time.Minute)
	})
}
