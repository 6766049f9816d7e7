package migration

import (
	"fmt"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// Timeouts of the controller. None of them ends a migration that the source's agent has
// begun.
const (
	// MakeTimeout is how long the disruption budget and the target pod may take to be made.
	MakeTimeout = time.Minute
	// UnschedulableTimeout is how long a target pod may be unschedulable.
	UnschedulableTimeout = 5 * time.Minute
	// StartTimeout is how long it may take from phase Scheduling until the target pod runs.
	// It is also how long a pending migration waits for a second launcher pod to end.
	StartTimeout = 15 * time.Minute
	// AgentTimeout is how long an agent may take for the next phase.
	AgentTimeout = time.Minute
	// PlacementTimeout is how long a target pod may have no node until it counts as waiting
	// for the scheduler, even if the scheduler says nothing.
	PlacementTimeout = 30 * time.Second
)

// again returns when a wait may time out.
func (f Facts) again(a Action) time.Duration {
	switch {
	case a != Wait && a != Expand && a != MakePod:
		return 0
	case begun(f.Migration):
		return f.reportDue()
	case f.pending() && f.Launchers <= 1:
		return 0 // its turn is an event
	}
	return max(time.Second, f.left())
}

// reportDue returns when the next report of an agent is overdue, 0 if it is.
func (f Facts) reportDue() time.Duration {
	most := UndecidedAfter
	if f.state().SourceState == "" && f.state().TargetState == "" {
		most = StillAfter
	}
	return max(0, until(f.reportedAt().Add(most), f.Now, most))
}

// left returns the remaining time of the present phase.
func (f Facts) left() time.Duration {
	switch {
	case f.pending():
		return until(f.Seen.Add(StartTimeout), f.Now, StartTimeout)
	case !f.in(kubevirt.MigrationScheduling):
		// Do not use the phase's timestamp: its writer has another clock.
		return until(f.Seen.Add(AgentTimeout), f.Now, AgentTimeout)
	}
	left := until(f.scheduling().Add(StartTimeout), f.Now, StartTimeout)
	switch p := f.Target; {
	case p == nil:
		left = min(left, until(f.Seen.Add(MakeTimeout), f.Now, MakeTimeout))
	case p.Unschedulable != "":
		left = min(left, until(p.Since.Add(UnschedulableTimeout), f.Now, UnschedulableTimeout))
	}
	return left
}

// until returns the time from now to end. A clock that was set back does not extend it
// beyond most.
func until(end, now time.Time, most time.Duration) time.Duration { return min(end.Sub(now), most) }

// scheduling returns when the phase Scheduling began. The controller itself wrote that
// time, so it does not wait anew after a restart.
func (f Facts) scheduling() time.Time {
	if t := f.Migration.Reached(kubevirt.MigrationScheduling); !t.IsZero() {
		return t
	}
	return f.Seen
}

// SayAfter is how long a wait lasts until it is said: most are over by then.
const SayAfter = 5 * time.Second

// say adds what is to be said of a wait.
func (f Facts) say(s *Step) {
	text, left := s.Message, until(f.Seen.Add(SayAfter), f.Now, SayAfter)
	switch {
	case s.Action != Wait && s.Action != Expand || !f.pending() && !f.in(kubevirt.MigrationScheduling):
	case text == kubevirt.FailureNoRoom && (f.state().WaitsFor == "" || f.state().WaitsFor == kubevirt.MigrationWaitsForTurn): // thousands may wait so
	case left > 0 && (s.Again == 0 || left < s.Again):
		s.Again = left
	case left <= 0 && text != f.state().WaitsFor:
		s.Waits = text
	}
}

// unplaced reports whether the target pod waits for the scheduler.
func (f Facts) unplaced() bool { return f.Target != nil && f.Target.Unplaced(f.Now) }

// Unplaced reports whether a pod waits for the scheduler, which has found no node for it or
// says nothing.
func (p *Pod) Unplaced(now time.Time) bool {
	return p.Node == "" && (p.Unschedulable != "" || now.Sub(p.Created) >= PlacementTimeout)
}

func (f Facts) launchersStay() string {
	return fmt.Sprintf("the VM has had more than one launcher pod for %v: see kubectl get pods -l %s=%s, and end what is left of a former migration",
		StartTimeout, kubevirt.CreatedByLabel, f.VMI.UID)
}

func (f Facts) notMade() string {
	switch {
	case f.Trouble != "":
		return fmt.Sprintf("the target pod could not be made for %v: %s", MakeTimeout, f.Trouble)
	case !f.Kept:
		return fmt.Sprintf("the VM's disruption budget did not protect two pods within %v: see the Events of the VM, and the log of the controller disruption-budgets", MakeTimeout)
	}
	return fmt.Sprintf("the target pod was not made within %v", MakeTimeout)
}

// targetLate returns why a target pod was of no use within its time.
func (f Facts) targetLate() string {
	p := f.Target
	switch {
	case p.Unschedulable != "" && p.Node == "":
		return fmt.Sprintf("target pod %s found no node for %v: %s", p.Name, UnschedulableTimeout.Round(time.Minute), oneline.Cut(p.Unschedulable, 256))
	case p.Runs && f.Turn:
		return strings.TrimSuffix(fmt.Sprintf("target pod %s runs, and the migration could not be handed to the agents within %v: %s", p.Name, StartTimeout+MakeTimeout, f.Trouble), ": ")
	case p.Runs:
		return fmt.Sprintf("target pod %s runs, and within %v there was no room for the migration: %s", p.Name, StartTimeout.Round(time.Minute), kubevirt.FailureNoRoom)
	}
	return fmt.Sprintf("target pod %s did not run within %v: see kubectl describe pod", p.Name, StartTimeout.Round(time.Minute))
}

func (f Facts) targetStarts() string {
	switch {
	case f.Target.Runs:
		return "target pod " + f.Target.Name + " runs: " + kubevirt.FailureNoRoom
	case f.unplaced():
		return strings.TrimSuffix("target pod "+f.Target.Name+" waits for the scheduler: "+oneline.Cut(f.Target.Unschedulable, 256), ": ")
	}
	return "target pod " + f.Target.Name + " starts"
}

func (f Facts) agentTimeout() string {
	who := "the agent of node " + f.state().TargetNode + " did"
	if f.in(kubevirt.MigrationTargetReady) {
		who = sourceSilent(f.state())
	}
	if f.in(kubevirt.MigrationTargetReady) && f.SourceNode.Lost {
		return fmt.Sprintf("%s not take the migration on within %v of %s: the node is not Ready; a VM can be moved away from it only if its agent works", who, AgentTimeout, f.phase())
	}
	return fmt.Sprintf("%s not take the migration on within %v of %s: look whether it runs there, at its version, its log and its --migration-listen", who, AgentTimeout, f.phase())
}

// sourceSilent begins the reason of a migration that has failed because the source's agent did
// not begin it. The target is innocent.
func sourceSilent(s *kubevirt.MigrationState) string {
	return "the agent of the VM's own node " + s.SourceNode + " did"
}

func (f Facts) waitsFor() string {
	switch {
	case f.in(kubevirt.MigrationScheduled):
		return "the agent of node " + f.state().TargetNode + " is to prepare"
	case f.in(kubevirt.MigrationPreparingTarget):
		return "the agent of node " + f.state().TargetNode + " prepares"
	case f.state().SourceState == kubevirt.SourceGone:
		return "the agent of node " + f.state().TargetNode + " is to resume the guest"
	case f.state().TargetState != "":
		return "the agent of node " + f.state().SourceNode + " is to report the state of its QEMU"
	}
	return "the agent of node " + f.state().SourceNode + " moves the guest"
}
