package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/fake"
)

func deleted(p *grace.Pod, at grace.Mono, length time.Duration) {
	p.Deleting, p.DeletingAt, p.DeletionGrace, p.KillAt = true, at, length, at.Add(length)
}

func TestAVMIThatWasDeletedWhileTheAgentWasDownIsNoticed(t *testing.T) {
	inCluster(t, "60", func(r *rig, c *memoryCluster) {
		r.stop()
		c.synced, c.vmi, c.pods, c.fate, c.asked = false, nil, nil, grace.FateDeleted, 0
		r.run()
		r.after(time.Hour)
		r.untouched()
		if c.asks() > 0 {
			t.Error("asked about a VMI although nothing was listed yet")
		}
		at := r.Now()
		r.listed()
		r.startedAs(grace.VMIDeleted, at, time.Minute)
	})
}

func TestTheFirstWordOfTheAPIServerIsWaitedForASecond(t *testing.T) {
	for name, after := range map[string]time.Duration{"it comes": 500 * time.Millisecond, "it does not": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				// Given: a fresh agent, a launcher whose trigger is there, and no record.
				r.stop()
				r.hv.Start(fake.Guest{Name: domain})
				r.cluster = &memoryCluster{}
				r.cluster.pods = []grace.Pod{{UID: pod1, VMI: uid, Created: born, KillAt: grace.Never, GracePeriod: time.Hour}}
				r.pod(pod1, uid)
				at := r.Now()
				r.run()
				r.sigterm(pod1)
				r.after(after)
				r.api(func(c *memoryCluster) {
					c.synced, c.vmi = true, &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: "77", DeletingAt: grace.Never}
				})
				if after < time.Second {
					r.startedAs(grace.LauncherSignal, at, 77*time.Second)
					return
				}
				if asked := r.when(fake.OpAsk, domain); len(asked) == 0 || asked[0] > 2*time.Second {
					t.Errorf("asked at %v", asked)
				}
			})
		})
	}
}

func TestAVMWithoutLauncherPodIsGuardedForItsVMI(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.cluster = &memoryCluster{synced: true, fate: grace.FateDeleted}
		r.cluster.vmi = &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: "40", DeletingAt: grace.Never}
		r.run()
		r.hv.Start(fake.Guest{Name: domain, Presses: 1})
		r.after(15 * time.Second)
		r.untouched()
		r.api(func(c *memoryCluster) { c.vmi = nil })
		r.after(10 * time.Second)
		if got := r.cluster.told(); !slices.Equal(got, []string{"ShutdownStarted", "ShutdownCompleted"}) {
			t.Errorf("Events %v", got)
		}
		if len(r.agent.Phases()) == 0 || r.agent.Phases()[grace.Running] != 0 {
			t.Errorf("%v", r.agent.Phases())
		}
		r.after(time.Minute)
		r.agent.mu.Lock()
		defer r.agent.mu.Unlock()
		if len(r.agent.keepers) != 0 {
			t.Error("a VM that is gone is still kept")
		}
	})
}

func TestARecordOutlivesItsShutdownUntilItsEventsAreSettled(t *testing.T) {
	inCluster(t, "5", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) { c.settles = time.Second })
		r.sigterm(pod1)
		r.after(5*time.Second + 500*time.Millisecond)
		if _, ok := r.record(); !ok {
			t.Error("an agent that dies now would take the Events along")
		}
		r.after(time.Second)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)

		// An API server and a disk that hang delay nothing for ever.
		r.api(func(c *memoryCluster) { c.settles = time.Hour })
		r.hv.Start(fake.Guest{Name: domain})
		r.after(15 * time.Second)
		r.sigterm(pod1)
		r.after(10 * time.Second)
		r.stoppedAs(pod1, grace.LauncherSignal, grace.Forced)
	})
}
