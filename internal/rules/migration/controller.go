package migration

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Pod has the facts about a launcher pod.
type Pod struct {
	Name, UID, Node string
	// Runs means that its containers have been started. No probe counts: the guest may answer it.
	Runs     bool
	Ended    bool
	Deleting bool
	// Lingers means that it is being deleted, with the grace period of its VM or another long one.
	Lingers bool
	// Held means that it is being deleted, and the VM's shutdown waits for the migration.
	Held bool
	// InTime means that it is being deleted, and has time for a migration under way before the
	// shutdown has to begin.
	InTime bool
	// Foreign means that it has the target pod's name but does not belong to this migration.
	Foreign bool
	Created time.Time
	// Unschedulable is the scheduler's message, Since its time.
	Unschedulable string
	Since         time.Time
}

// Facts is what the controller knows about a migration.
type Facts struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// VMI is nil if the API server has none of that name.
	VMI *kubevirt.VirtualMachineInstance
	// Before is another unfinished migration of the VM that goes first, or empty.
	Before string
	// Source is the launcher pod on the VMI's node, Target the migration's own. Nil if there
	// is none.
	Source, Target *Pod
	// Launchers counts the VM's launcher pods that have not ended.
	Launchers int
	// OtherNodes is 0 if there is no node beside the VM's.
	OtherNodes int
	// Turn means that the limits on parallel migrations allow it to begin or, if it has begun,
	// to be handed to the agents.
	Turn bool
	// Undecided names an undecided migration that keeps a slot of the VM's node, or is "".
	Undecided string
	// Trouble is the last error of making the target pod, or of the hand-over, in one line, or "".
	Trouble string
	// Kept means that the VM's disruption budget protects two pods, or the VM needs no budget.
	Kept bool
	// SourceNode and TargetNode are the nodes of a migration that has a target.
	SourceNode, TargetNode NodeFacts
	// Seen is when the controller first observed the present phase, the agents' present states
	// and the present progress.
	Seen time.Time
	// Said is what the VMI says that this migration waits for, or "".
	Said string
	Now  time.Time
}

// Action is a step of the controller.
type Action string

// Actions of the controller. Each is one write, or idempotent writes.
const (
	Nothing  Action = "Nothing"
	Wait     Action = "Wait"     // for the limits, a pod, an agent
	Adopt    Action = "Adopt"    // add the finalizer
	Expand   Action = "Expand"   // make the budget protect two pods
	Begin    Action = "Begin"    // phase Scheduling, with the source of the VMI
	MakePod  Action = "MakePod"  // create the target pod
	Schedule Action = "Schedule" // label both objects, then phase Scheduled with all that the agents need
	Abort    Action = "Abort"    // request the abort from the source's agent
	// FenceSource reports SourceGone in place of the agent of a fenced node, FenceTarget reports
	// TargetAbsent.
	FenceSource Action = "FenceSource"
	FenceTarget Action = "FenceTarget"
	Fail        Action = "Fail"    // phase Failed
	Move        Action = "Move"    // the VMI's node, mark and label
	Succeed     Action = "Succeed" // phase Succeeded
	Unlabel     Action = "Unlabel" // remove the VMI's label
	DropPod     Action = "DropPod" // delete the target pod
	Release     Action = "Release" // remove the finalizer
)

// Step is what the controller does next. Message is the failureReason if the action is Fail or
// Abort.
type Step struct {
	Action  Action
	Reason  string
	Message string
	// Undecided says what the migration waits for if only a person may be able to bring it
	// about, since when, and what to do, in one line; else "".
	Undecided string
	// Waits is what is to be said of a wait before the hand-over to the agents, in one line, or "".
	Waits string
	// Again is when to decide again without an event, 0 if never.
	Again time.Duration
}

func (f Facts) phase() kubevirt.MigrationPhase { return f.Migration.Status.Phase }

func (f Facts) state() *kubevirt.MigrationState { return StateOf(f.Migration) }

func (f Facts) in(phases ...kubevirt.MigrationPhase) bool {
	return slices.Contains(phases, f.phase())
}

func (f Facts) pending() bool { return f.in("", kubevirt.MigrationPending) }

func (f Facts) adopted() bool {
	return slices.Contains(f.Migration.Finalizers, Finalizer)
}

// same reports whether the VMI is the one with which the migration has begun.
func (f Facts) same() bool {
	return f.VMI != nil && f.Migration.Of(f.VMI)
}

// moved reports whether the VMI already shows the target node.
func (f Facts) moved() bool {
	return !f.same() || f.VMI.Status.NodeName == f.state().TargetNode && f.VMI.Labels[kubevirt.NodeNameLabel] == f.state().TargetNode
}

// labelled reports whether the VMI has this migration's label.
func (f Facts) labelled() bool {
	label := ""
	if f.same() && f.Before == "" {
		label = f.VMI.Labels[kubevirt.MigrationTargetLabel]
	}
	return label != "" && (f.state().TargetNode == "" || f.state().TargetNode == label)
}

// removable reports whether no guest at the target depends on the target pod. A migration that
// failed before it began can no longer begin.
func (f Facts) removable() bool {
	return !begun(f.Migration) || f.state().TargetState == kubevirt.TargetAbsent || f.TargetNode.Gone
}

// podRemovable reports whether the target pod of a failed migration may be deleted: also if its
// node is lost or its agent silent, and the source has reported that the guest runs there, so that
// no copy is ever resumed.
func (f Facts) podRemovable() bool {
	return f.removable() || (f.TargetNode.Lost || f.reportLate()) && f.state().SourceState == kubevirt.SourceRunning
}

// targetNode returns the target's node, or where its pod is placed, or "".
func (f Facts) targetNode() string {
	if f.state().TargetNode == "" && f.Target != nil && !f.Target.Foreign {
		return f.Target.Node
	}
	return f.state().TargetNode
}

// targetStays reports whether the target pod is there, and will be for long.
func (f Facts) targetStays() bool {
	return f.Target != nil && (!f.Target.Deleting || f.Target.Lingers) && !f.Target.Foreign
}

// controllerRules are read from top to bottom: the first that holds decides.
var controllerRules = []struct {
	reason string
	holds  func(Facts) bool
	action Action
	text   func(Facts) string
}{
	// The migration has ended: clean up.
	{"PodStays", func(f Facts) bool { return f.in(kubevirt.MigrationFailed) && f.targetStays() && f.podRemovable() }, DropPod, text("the migration has failed")},
	{"TargetFenced", Facts.fenceTarget, FenceTarget, func(f Facts) string {
		return "node " + f.state().TargetNode + " is fenced: " + f.TargetNode.Fenced
	}},
	{"TargetStays", func(f Facts) bool { return f.in(kubevirt.MigrationFailed) && f.adopted() && !f.removable() }, Wait, func(f Facts) string {
		return "the agent of node " + f.state().TargetNode + " has not reported that the guest is absent"
	}},
	{"Untidy", func(f Facts) bool { return f.Migration.Final() && f.adopted() && f.labelled() }, Unlabel, text("the migration has ended")},
	{"Done", func(f Facts) bool { return f.Migration.Final() && f.adopted() }, Release, text("the migration has ended")},
	{"Ended", func(f Facts) bool { return f.Migration.Final() }, Nothing, text("the migration has ended")},

	// A guest that runs at the target has moved, even if an abort was requested. Both agents
	// have to report it: one report proves nothing about the other's node.
	{"Arrived", func(f Facts) bool { return f.arrived() && !f.moved() }, Move, func(f Facts) string {
		return "the guest runs on node " + f.state().TargetNode
	}},
	{"Moved", Facts.arrived, Succeed, text("")},

	// Reasons to fail or abort.
	{"Stayed", func(f Facts) bool { return f.state().SourceState == kubevirt.SourceRunning }, Fail, func(f Facts) string {
		return cmp.Or(f.state().FailureReason, "the guest stayed on node "+f.state().SourceNode)
	}},
	{"Lost", func(f Facts) bool {
		return f.state().SourceState == kubevirt.SourceGone && f.state().TargetState == kubevirt.TargetAbsent
	}, Fail, Facts.lostText},
	{"SourceFenced", Facts.fenceSource, FenceSource, func(f Facts) string {
		return "node " + f.state().SourceNode + " is fenced: " + f.SourceNode.Fenced
	}},
	{"Cancelled", func(f Facts) bool { return !begun(f.Migration) && f.cancelled() != "" }, Fail, Facts.cancelled},
	{"Refused", func(f Facts) bool {
		return !begun(f.Migration) && f.state().TargetState == kubevirt.TargetAbsent && !f.pending()
	}, Fail, func(f Facts) string {
		return cmp.Or(f.state().FailureReason, "node "+f.state().TargetNode+" cannot take the VM")
	}},
	{"TargetLost", func(f Facts) bool { return !begun(f.Migration) && !f.pending() && f.TargetNode.Lost }, Fail, func(f Facts) string {
		return "the target's node " + f.targetNode() + " is not Ready"
	}},
	{"Abort", func(f Facts) bool {
		return begun(f.Migration) && f.state().SourceState == "" && !f.state().AbortRequested && f.cancelled() != ""
	}, Abort, Facts.cancelled},
	{"Running", func(f Facts) bool { return begun(f.Migration) }, Wait, Facts.waitsFor},

	{"Invalid", func(f Facts) bool { return f.pending() && f.invalid() != "" }, Fail, Facts.invalid},
	{"LaunchersStay", func(f Facts) bool { return f.pending() && f.Launchers > 1 && f.left() <= 0 }, Fail, Facts.launchersStay},
	{"Waits", func(f Facts) bool { return f.pending() && f.waits() != "" }, Wait, Facts.waits},
	{"Adopt", func(f Facts) bool { return !f.adopted() }, Adopt, text("the migration begins")},
	{"Begin", Facts.pending, Begin, text("the migration begins")},

	{"NotMade", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target == nil && f.left() <= 0 }, Fail, Facts.notMade},
	{"NotKept", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target == nil && !f.Kept }, Expand, text("a second launcher pod is to come")},
	{"NoTarget", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target == nil }, MakePod, text("the target pod is made")},
	{"TargetFails", func(f Facts) bool { return f.targetFails() != "" }, Fail, Facts.targetFails},
	{"TargetRuns", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target.Runs && f.Turn }, Schedule, text("the target pod runs")},
	{"TargetStarts", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) }, Wait, Facts.targetStarts},
	{"AgentTimeout", func(f Facts) bool { return f.left() <= 0 }, Fail, Facts.agentTimeout},
	{"AgentWorks", func(Facts) bool { return true }, Wait, Facts.waitsFor},
}

// Next returns the controller's next step.
func Next(f Facts) Step {
	for _, rule := range controllerRules {
		if rule.holds(f) {
			s := Step{Action: rule.action, Reason: rule.reason, Message: rule.text(f), Undecided: f.undecided(rule.action), Again: f.again(rule.action)}
			f.say(&s)
			return s
		}
	}
	return Step{} // not reached: the last rule always holds
}

// arrived reports whether the guest runs at the target, and QEMU of the source is gone.
func (f Facts) arrived() bool {
	return begun(f.Migration) && f.state().TargetState == kubevirt.TargetRunning && f.state().SourceState == kubevirt.SourceGone
}

func text(s string) func(Facts) string { return func(Facts) string { return s } }
