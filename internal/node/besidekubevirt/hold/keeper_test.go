package hold

import (
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

func TestADeletionThatIsNobodysMoveIsAnsweredAtOnce(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"plain deletion": func(r *rig) { r.shown[0] = r.deleted(r.shown[0], "") },
		"VMI deleted": func(r *rig) {
			r.shown[0], r.vm.State = r.deleted(r.shown[0], grace.PreemptionByScheduler), grace.VMIDeleting
		},
		"plain deletion, no VMI is seen": func(r *rig) { r.shown[0], r.vm = r.deleted(r.shown[0], ""), VM{} },
		"gate off": func(r *rig) {
			r.shown[0].Holdable = false
			r.shown[0] = r.deleted(r.shown[0], grace.PreemptionByScheduler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			given(t, func(r *rig) {
				r.api(func() { change(r) })
				r.signal()
				r.want("at once", false, true)
				if r.after(time.Hour); len(r.ended) != 0 || len(r.events) != 0 || len(r.records) != 0 {
					t.Errorf("it was held: %v, %v", r.ended, r.events)
				}
			})
		})
	}
}

// Given a pod whose deletion kubelet sees before the agent's watch. Then the API server is asked.
func TestTheWatchMayBeLaterThanTheSignal(t *testing.T) {
	given(t, func(r *rig) {
		live := r.deleted(r.shown[0], grace.DeletionByTaintManager)
		r.change(func() { r.live, r.vm.Marked = &live, true })
		r.signal()
		r.want("asked for", true, true)
		r.api(func() { r.vm.Moving = true }) // the watch still shows the pod as it was
		r.after(time.Minute)
		r.want("later", true, true)
	})
}

func TestWhatCannotBeFoundOutLetsGoBeforeTheHookGoesOn(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"the deletion is not shown": func(*rig) {},
		"the API server is silent":  func(r *rig) { r.down = true },
		"the VMI is not known": func(r *rig) {
			r.shown[0], r.vm = r.deleted(r.shown[0], grace.PreemptionByScheduler), VM{}
		},
		"the VMI is another": func(r *rig) {
			r.shown[0], r.vm.UID = r.deleted(r.shown[0], grace.PreemptionByScheduler), "another"
		},
	} {
		t.Run(name, func(t *testing.T) {
			given(t, func(r *rig) {
				r.api(func() { change(r) })
				r.signal()
				r.want("at first", false, false)
				r.after(1999 * time.Millisecond)
				r.want("before 2 s", false, true)
			})
		})
	}
}

// Given a disk that hangs, and an API server that is slow when the last question is asked.
func TestTheLastAnswerComesWhileTheHookWaits(t *testing.T) {
	given(t, func(r *rig) {
		answers := make(chan struct{})
		defer close(answers)
		r.change(func() { r.disk = func() { <-answers } })
		r.signal()
		r.after(1100 * time.Millisecond)
		live := r.deleted(r.shown[0], grace.PreemptionByScheduler)
		r.change(func() { r.live, r.slow = &live, askTimeout-time.Millisecond })
		r.after(899 * time.Millisecond)
		r.want("before 2 s", false, true)
	})
}

// Given an API server that is silent about a VMI that is not shown any more. The guest's grace
// period waits for no answer.
func TestNoQuestionDelaysTheEndOfAHold(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.api(func() { r.vm, r.down = VM{VMI: grace.VMI{State: grace.VMIAbsent}}, true })
		r.after(2*time.Minute - time.Nanosecond)
		r.want("just before", true, true)
		r.after(time.Nanosecond)
		r.wantEnd(TimeIsOver)
	})
}

func TestALauncherIsHeldUntilItsVMHasLeft(t *testing.T) {
	for name, leave := range map[string]func(r *rig){
		"it is shown elsewhere": func(r *rig) { r.vm.Left = true },
		"it is not shown here":  func(r *rig) { r.vm, r.fate = VM{VMI: grace.VMI{State: grace.VMIAbsent}}, grace.FateMoved },
	} {
		t.Run(name, func(t *testing.T) {
			given(t, func(r *rig) {
				r.preempted(true)
				r.want("marked", true, true)
				rec := r.records[domain]
				if h := rec.Hold; rec.Phase(r.clock.Now()) != grace.Held || h.Reason != grace.PreemptionByScheduler || h.Until != h.Start.Add(2*time.Minute) || rec.Pod != uid || rec.UID != vmiUID {
					t.Errorf("recorded: %+v", rec)
				}
				if len(r.events) != 1 || r.events[0].Reason != "ShutdownHeld" || r.events[0].UID != vmiUID {
					t.Errorf("Events: %+v", r.events)
				}
				r.api(func() { r.vm.Moving = true })
				r.after(90 * time.Second)
				r.want("moving", true, true)
				r.api(func() { leave(r) })
				r.wantEnd(Moved)
				if len(r.events) != 1 {
					t.Errorf("Events: %+v", r.events)
				}
			})
		})
	}
}

func TestHowAHoldEnds(t *testing.T) {
	for name, c := range map[string]struct {
		marked bool
		after  time.Duration
		change func(r *rig)
		lasts  time.Duration // from then on
		want   Outcome
	}{
		"nobody marks it":        {false, 0, func(*rig) {}, 5 * time.Second, NotMarked},
		"the VMI is deleted":     {true, time.Minute, func(r *rig) { r.vm.State = grace.VMIDeleting }, 0, VMIDeleted},
		"the VMI is replaced":    {true, time.Minute, func(r *rig) { r.vm.UID, r.fate = "another", grace.FateReplaced }, 0, VMIDeleted},
		"the mark is taken back": {true, time.Minute, func(r *rig) { r.vm.Marked = false }, 0, NotMoved},
		"the time is over":       {true, time.Minute, func(r *rig) { r.vm.Moving = true }, time.Minute, TimeIsOver},
		"the grace was cut": {true, time.Minute, func(r *rig) {
			r.shown[0].DeletionGrace, r.shown[0].KillAt = 2*time.Minute, r.clock.Now().Add(100*time.Second)
		}, 10 * time.Second, TimeIsOver},
		"the move fails late":  {true, 100 * time.Second, failed, 0, NotMoved},
		"the move fails early": {true, time.Minute, failed, 30*time.Second + 1, NotMoved},
	} {
		t.Run(name, func(t *testing.T) {
			given(t, func(r *rig) {
				r.preempted(c.marked)
				r.after(c.after)
				if name == "the move fails late" || name == "the move fails early" {
					r.api(func() { r.vm.Moving = true })
				}
				r.api(func() { c.change(r) })
				if c.lasts > 0 {
					r.after(c.lasts - time.Nanosecond)
					r.want("just before", true, true)
					r.after(time.Nanosecond)
				}
				r.wantEnd(c.want)
				r.after(time.Hour)
				r.want("for ever", false, true)
			})
		})
	}
}

func failed(r *rig) { r.vm.Moving = false }

// Given a VM without a mark, which has a migration. Then it is held, until the migration is
// over.
func TestAMigrationThatTheVMIDoesNotShowYetCounts(t *testing.T) {
	given(t, func(r *rig) {
		r.change(func() { r.moves = true })
		r.preempted(false)
		r.after(time.Minute)
		r.want("it waits for its target", true, true)
		r.change(func() { r.moves = false })
		r.after(moveInterval)
		r.wantEnd(NotMoved)
	})
}

// KubeVirt may take its mark back before its VMI shows the migration.
func TestAMarkThatIsTakenBackForAMigrationEndsNoHold(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.api(func() { r.vm.Marked, r.moves = false, true })
		r.after(time.Second)
		r.want("asked for", true, true)
	})
}

func TestALauncherDirectoryThatFailsIsTriedAgain(t *testing.T) {
	given(t, func(r *rig) {
		r.change(func() { r.refuses = 3 })
		r.preempted(true)
		r.want("refused", false, false)
		r.after(3 * retryInterval)
		r.want("tried again", true, true)
		r.change(func() { r.refuses = 3 })
		r.api(func() { r.vm.Left = true })
		r.after(3 * retryInterval)
		r.wantEnd(Moved)
		if len(r.events) != 1 {
			t.Errorf("Events: %+v", r.events)
		}
	})
}

func TestTheNodesShutdownEndsAHold(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.keeper.NodeShutdown(true)
		r.after(0)
		r.wantEnd(NodeShutdown)
	})
}

// Given a launcher whose directory kubelet has removed, and whose pod is still shown. Then nothing
// is written again and again, and the hold ends as ever.
func TestALauncherThatIsGoneBeforeItsPod(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.api(func() { r.vm.Moving = true })
		writes := 0
		r.api(func() { r.dir, r.disk = watch.HoldView{}, func() { writes++ } })
		r.after(30 * time.Second)
		if writes > 0 {
			t.Errorf("%d writes", writes)
		}
		r.api(func() { r.vm.Left = true })
		if len(r.ended) != 1 || r.ended[0] != Moved || len(r.records) != 0 {
			t.Errorf("ended %v, records %v", r.ended, r.records)
		}
	})
}

func TestALauncherThatIsGoneIsForgotten(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(true)
		r.api(func() { r.shown, r.dir.Present = nil, false })
		if len(r.keeper.launchers) != 0 || len(r.records) != 0 || len(r.ended) != 1 || r.ended[0] != LauncherGone {
			t.Errorf("%v, %v, %v", r.keeper.launchers, r.records, r.ended)
		}
	})
}

// A hook that kubelet runs again finds the agent's answer.
func TestAnAnswerStands(t *testing.T) {
	given(t, func(r *rig) {
		r.preempted(false)
		r.after(5 * time.Second)
		r.wantEnd(NotMarked)
		r.signal()
		r.restart()
		r.after(time.Minute)
		r.wantEnd(NotMarked)
	})
}
