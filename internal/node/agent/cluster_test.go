package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

func TestADeletedVMIShutsItsVMDownWithItsGracePeriod(t *testing.T) {
	inCluster(t, "45", func(r *rig, c *memoryCluster) {
		if rec, ok := r.record(); !ok || rec.UID != uid || !rec.VMICreated.Equal(born) || rec.Pod != pod1 ||
			rec.Period != (grace.Period{Length: 45 * time.Second, Source: grace.SourceVMI}) {
			t.Fatalf("guarded as %+v", rec)
		}
		at := r.Now()
		r.api(func(c *memoryCluster) {
			c.vmi.State, c.vmi.DeletingAt, c.fate = grace.VMIDeleting, at, grace.FateDeleted
		})
		r.startedAs(grace.VMIDeleted, at, 45*time.Second)
		r.after(46 * time.Second)
		r.stoppedAs(pod1, grace.VMIDeleted, grace.Forced)
		if got := c.told(); !slices.Equal(got, []string{"ShutdownStarted", "ShutdownForced"}) {
			t.Errorf("Events %v", got)
		}
	})
}

func TestAVMIThatDisappearsIsDeletedOnlyWhenTheAPIServerSaysSo(t *testing.T) {
	for fate, started := range map[grace.Fate]bool{grace.FateDeleted: true, grace.FateHere: false, grace.FateLost: false} {
		t.Run(string(fate), func(t *testing.T) {
			inCluster(t, "45", func(r *rig, c *memoryCluster) {
				r.api(func(c *memoryCluster) { c.vmi, c.err = nil, errDown })
				r.after(10 * time.Minute)
				r.untouched()
				if c.asks() < 100 {
					t.Errorf("asked %d times in ten minutes", c.asks())
				}
				r.api(func(c *memoryCluster) { c.err, c.fate = nil, fate })
				r.after(5 * time.Second)
				if !started {
					r.untouched()
					return
				}
				// The grace period begins with the proof: the guest was not asked before.
				rec, _ := r.record()
				if ago := r.Now().Sub(rec.Shutdown.Start); rec.Shutdown.Cause != grace.VMIDeleted || ago > 5*time.Second {
					t.Errorf("%+v, begun %v ago", rec.Shutdown, ago)
				}
			})
		})
	}
}

func TestADeletionThatTheAPIServerShowsNeedsNoAnswer(t *testing.T) {
	inCluster(t, "45", func(r *rig, _ *memoryCluster) {
		at := r.Now()
		r.api(func(c *memoryCluster) { c.vmi.State, c.vmi.DeletingAt, c.err = grace.VMIDeleting, at, errDown })
		r.after(time.Second)
		r.startedAs(grace.VMIDeleted, at, 45*time.Second)
	})
}

func TestVMIsThatGoWithTheirCRDTakeNoVMAlong(t *testing.T) {
	inCluster(t, "45", func(r *rig, _ *memoryCluster) {
		// Given: the CRD is being deleted, and with it every VMI. That is not shown as a
		// deletion.
		r.api(func(c *memoryCluster) { c.fate = grace.FateLost })
		r.after(time.Minute)
		r.untouched()
		r.api(func(c *memoryCluster) { c.vmi = nil })
		r.after(time.Minute)
		r.untouched()
		if rec, _ := r.record(); rec.Period.Length != 45*time.Second {
			t.Errorf("the grace period is %v", rec.Period)
		}
		r.restart()
		r.after(time.Minute)
		r.untouched()
		// When it is back, with a VMI of the same name.
		r.api(func(c *memoryCluster) {
			c.vmi = &grace.VMI{State: grace.VMIPresent, UID: "uid-2", Created: born.Add(time.Hour), Grace: "50", DeletingAt: grace.Never}
			c.fate = grace.FateHere
		})
		r.after(time.Minute)
		r.untouched()
		if rec, _ := r.record(); rec.UID != "uid-2" || rec.Period.Length != 50*time.Second {
			t.Errorf("guarded as %+v", rec)
		}
		// Then the launcher, which knows the VM by its old UID, is still heard.
		at := r.Now()
		r.sigterm(pod1)
		r.startedAs(grace.LauncherSignal, at, 50*time.Second)
		if s := r.dir(pod1).said(); s.UID != uid {
			t.Errorf("status.json speaks of %q; the shim waits for %q", s.UID, uid)
		}
	})
}

func TestAVMIThatMovedIsForgottenHere(t *testing.T) {
	inCluster(t, "45", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) { c.vmi, c.fate = nil, grace.FateMoved })
		r.after(time.Minute)
		if rec, ok := r.record(); ok {
			t.Errorf("still recorded: %+v", rec)
		}
		if at := r.when(fake.OpAsk, domain); len(at) > 0 {
			t.Errorf("its VM was asked to shut down at %v", at)
		}
		// When it moves back, it is guarded again.
		r.api(func(c *memoryCluster) {
			c.vmi = &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: "45", DeletingAt: grace.Never}
		})
		r.after(time.Minute)
		r.untouched()
	})
}

func TestAVMIOfTheSameNameIsAnotherOne(t *testing.T) {
	inCluster(t, "45", func(r *rig, _ *memoryCluster) {
		// Given: deleted and made again before the agent could look.
		r.api(func(c *memoryCluster) {
			c.vmi = &grace.VMI{State: grace.VMIPresent, UID: "uid-2", Created: born.Add(time.Hour), Grace: "600", DeletingAt: grace.Never}
			c.pods = append(c.pods, grace.Pod{UID: "pod-2", VMI: "uid-2", Created: born.Add(time.Hour), DeletingAt: grace.Never, KillAt: grace.Never, GracePeriod: time.Hour})
			c.fate = grace.FateDeleted
		})
		rec, _ := r.record()
		if rec.UID != uid || rec.Shutdown.Cause != grace.VMIDeleted || rec.Period.Length != 45*time.Second || rec.Pod != pod1 {
			t.Fatalf("%+v; want the old one to be shut down with its own grace period", rec)
		}
		r.after(50 * time.Second)
		r.stoppedAs(pod1, grace.VMIDeleted, grace.Forced)
		r.pod("pod-2", "uid-2")
		r.hv.Start(fake.Guest{Name: domain})
		r.after(20 * time.Second)
		if rec, _ := r.record(); rec.UID != "uid-2" || rec.Pod != "pod-2" || rec.ShuttingDown() || rec.Period.Length != 10*time.Minute {
			t.Errorf("%+v; want the new one to be guarded", rec)
		}
	})
}

func TestAVMIThatWasDeletedIsNotHeldAgainstTheNextInstance(t *testing.T) {
	inCluster(t, "5", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) {
			c.vmi.State, c.vmi.DeletingAt, c.fate = grace.VMIDeleting, r.Now(), grace.FateDeleted
		})
		r.after(6 * time.Second) // its finalizer keeps the VMI
		r.stoppedAs(pod1, grace.VMIDeleted, grace.Forced)
		r.hv.Start(fake.Guest{Name: domain})
		r.after(time.Minute)
		if rec, _ := r.record(); rec.ShuttingDown() {
			t.Errorf("%+v", rec.Shutdown)
		}
	})
}

func TestADomainAfterItsVMIsDeletionGetsItsGracePeriod(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.cluster = &memoryCluster{synced: true, fate: grace.FateDeleted}
		r.cluster.vmi = &grace.VMI{State: grace.VMIDeleting, UID: uid, Created: born, Grace: "40", DeletingAt: r.Now()}
		r.run()
		r.after(time.Hour)
		r.hv.Start(fake.Guest{Name: domain})
		at := r.Now()
		r.after(15 * time.Second)
		rec, _ := r.record()
		if s := rec.Shutdown; s.Cause != grace.VMIDeleted || s.Start < at || s.Deadline != s.Start.Add(40*time.Second) {
			t.Errorf("%+v", s)
		}
	})
}

func TestBothCausesAtOnceAreOneShutdown(t *testing.T) {
	inCluster(t, "30", func(r *rig, c *memoryCluster) {
		at := r.Now()
		r.api(func(c *memoryCluster) {
			c.vmi.State, c.vmi.DeletingAt, c.fate = grace.VMIDeleting, at, grace.FateDeleted
			c.pods[0].Deleting, c.pods[0].DeletingAt, c.pods[0].DeletionGrace, c.pods[0].KillAt = true, at, time.Minute, at.Add(time.Minute)
		})
		r.after(2 * time.Second)
		r.sigterm(pod1)
		r.startedAs(grace.VMIDeleted, at, 30*time.Second)
		r.after(time.Minute)
		r.stoppedAs(pod1, grace.VMIDeleted, grace.Forced)
		if got := c.told(); !slices.Equal(got, []string{"ShutdownStarted", "ShutdownForced"}) {
			t.Errorf("Events %v", got)
		}
	})
}

func TestADeletedVMIWithoutGraceIsDestroyedUnasked(t *testing.T) {
	inCluster(t, "0", func(r *rig, _ *memoryCluster) {
		r.api(func(c *memoryCluster) {
			c.vmi.State, c.vmi.DeletingAt, c.fate = grace.VMIDeleting, r.Now(), grace.FateDeleted
		})
		r.after(time.Second)
		r.stoppedAs(pod1, grace.VMIDeleted, grace.Forced)
		if asked := r.when(fake.OpAsk, domain); len(asked) > 0 {
			t.Errorf("asked at %v", asked)
		}
	})
}

func TestAnInvalidGracePeriodOfAVMIIsToldAndNeverZero(t *testing.T) {
	inCluster(t, "-5", func(r *rig, c *memoryCluster) {
		if rec, _ := r.record(); rec.Period != (grace.Period{Length: 30 * time.Second, Source: grace.SourceDefault}) {
			t.Errorf("%+v", rec.Period)
		}
		r.api(func(*memoryCluster) {})
		if got := c.told(); !slices.Equal(got, []string{"InvalidGracePeriod"}) {
			t.Errorf("Events %v", got)
		}
	})
}

func TestAVMIDeletedDuringADryRunIsShutDownByTheRealAgent(t *testing.T) {
	inCluster(t, "45", func(r *rig, _ *memoryCluster) {
		// Given: a dry run that sees the deletion, and nothing of the VM left but
		// its domain.
		r.stop()
		r.policy.DryRun = true
		r.run()
		r.after(time.Second)
		r.api(func(c *memoryCluster) { c.vmi, c.pods, c.fate = nil, nil, grace.FateDeleted })
		r.set(pod1, func(v *watch.View) { *v = watch.View{} })
		r.after(time.Hour)
		if n := r.hv.Count(fake.OpSignal, domain); n != 0 {
			t.Fatalf("a dry run signals %d times", n)
		}
		// When a real agent follows, then the guest gets its whole grace period.
		r.stop()
		r.policy.DryRun = false
		back := time.Since(r.start)
		r.run()
		r.after(time.Minute)
		if got := r.when(fake.OpSignal, domain); len(got) != 1 || got[0] < back+45*time.Second || got[0] > back+47*time.Second {
			t.Errorf("signalled at %v; want 45 s after %v", got, back)
		}
	})
}
