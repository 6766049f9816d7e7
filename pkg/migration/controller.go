package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Bounds of the controller's patience. None of them ends a migration that the
// source's agent has begun.
const (
	// UnschedulableFor is how long a target pod may find no node.
	UnschedulableFor = 5 * time.Minute
	// StartFor is how long it may take to run, all in all.
	StartFor = 15 * time.Minute
	// AgentFor is how long an agent may take for its next phase.
	AgentFor = 2 * time.Minute
)

// Pod is what counts of a launcher pod.
type Pod struct {
	Name, UID, Node string
	Ready           bool // it runs, and says so
	Ended           bool
	Deleting        bool
	// Held: it is being deleted, and its shutdown waits for the migration.
	Held bool
	// Foreign: it has the target's name and is not of this migration.
	Foreign bool
	Created time.Time
	// Unschedulable is what the scheduler says, Since when.
	Unschedulable string
	Since         time.Time
}

// Facts is what the controller knows of a migration.
type Facts struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// VMI of that name; nil: the API server says by its name that there is none.
	VMI *kubevirt.VirtualMachineInstance
	// Before is another unfinished migration of the VM that goes first, or empty.
	Before string
	// Source is the launcher pod on the VMI's node, Target the migration's own.
	// Nil: there is none.
	Source, Target *Pod
	// Launchers counts the VM's launcher pods that have not ended.
	Launchers int
	// OtherNodes counts the nodes beside the VM's.
	OtherNodes int
	// Turn: the limits leave room for it.
	Turn bool
	// Kept: the VM's disruption budget keeps two pods, or there is none to be.
	Kept bool
	// TargetNodeGone: the API server says that the target's node is no more.
	TargetNodeGone bool
	// Seen is when the controller first saw the present phase.
	Seen time.Time
	Now  time.Time
}

// Action is a step of the controller.
type Action string

// Actions of the controller. Each is one write, or some that may be done twice.
const (
	Nothing  Action = "Nothing"
	Wait     Action = "Wait"     // for the limits, a pod, an agent
	Adopt    Action = "Adopt"    // put the finalizer on
	Expand   Action = "Expand"   // the budget keeps two
	Begin    Action = "Begin"    // Scheduling, with the source as it is
	MakePod  Action = "MakePod"  // the target pod
	Schedule Action = "Schedule" // labels of both objects, then Scheduled with all the agents need
	Abort    Action = "Abort"    // ask the source's agent to end it
	Fail     Action = "Fail"     // Failed
	Move     Action = "Move"     // the VMI's node, mark and label
	Succeed  Action = "Succeed"  // Succeeded
	Unlabel  Action = "Unlabel"  // the VMI's label goes
	DropPod  Action = "DropPod"  // the target pod goes
	Release  Action = "Release"  // the finalizer goes
)

// Step is what the controller does next. Message is the failureReason where the
// action is Fail or Abort.
type Step struct {
	Action  Action
	Reason  string
	Message string
	// Again is when to look again though nothing happened; 0 = no need to.
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

// same reports whether the VMI is the one that the migration began with.
func (f Facts) same() bool {
	return f.VMI != nil && (f.state().VMIUID == "" || f.state().VMIUID == string(f.VMI.UID))
}

// moved reports whether the VMI says all that a success has it say.
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

// removable: the target's agent has nothing that the pod's end would take along.
func (f Facts) removable() bool {
	return !taken(f.Migration) || f.state().TargetState == kubevirt.TargetAbsent || f.TargetNodeGone
}

func (f Facts) targetStays() bool { return f.Target != nil && !f.Target.Deleting && !f.Target.Foreign }

// controllerRules are read from top to bottom: the first that holds decides.
var controllerRules = []struct {
	reason string
	holds  func(Facts) bool
	action Action
	text   func(Facts) string
}{
	// Over: tidy up, and let it go.
	{"PodStays", func(f Facts) bool { return f.in(kubevirt.MigrationFailed) && f.targetStays() && f.removable() }, DropPod, text("the migration has failed")},
	{"TargetStays", func(f Facts) bool { return f.in(kubevirt.MigrationFailed) && f.adopted() && !f.removable() }, Wait, func(f Facts) string {
		return "the agent of node " + f.state().TargetNode + " has not said that the guest is not there"
	}},
	{"Untidy", func(f Facts) bool { return f.Migration.Final() && f.adopted() && f.labelled() }, Unlabel, text("the migration has ended")},
	{"Done", func(f Facts) bool { return f.Migration.Final() && f.adopted() }, Release, text("the migration has ended")},
	{"Ended", func(f Facts) bool { return f.Migration.Final() }, Nothing, text("the migration has ended")},

	// A guest that runs at the target has moved, whatever was asked meanwhile.
	{"Arrived", func(f Facts) bool { return f.begunAndSaid(kubevirt.TargetRunning) && !f.moved() }, Move, func(f Facts) string {
		return "the guest runs on node " + f.state().TargetNode
	}},
	{"Moved", func(f Facts) bool { return f.begunAndSaid(kubevirt.TargetRunning) }, Succeed, text("")},

	// What ends it.
	{"Stayed", func(f Facts) bool { return f.state().SourceState == kubevirt.SourceRunning }, Fail, func(f Facts) string {
		return cmp.Or(f.state().FailureReason, "the guest stayed on node "+f.state().SourceNode)
	}},
	{"Lost", func(f Facts) bool {
		return f.state().SourceState == kubevirt.SourceGone && f.state().TargetState == kubevirt.TargetAbsent
	}, Fail, func(f Facts) string {
		return "QEMU of node " + f.state().SourceNode + " ended before the guest had arrived"
	}},
	{"Cancelled", func(f Facts) bool { return !begun(f.Migration) && f.cancelled() != "" }, Fail, Facts.cancelled},
	{"Refused", func(f Facts) bool {
		return !begun(f.Migration) && f.state().TargetState == kubevirt.TargetAbsent && !f.pending()
	}, Fail, func(f Facts) string {
		return cmp.Or(f.state().FailureReason, "node "+f.state().TargetNode+" cannot take the VM")
	}},
	{"Abort", func(f Facts) bool {
		return begun(f.Migration) && f.state().SourceState == "" && !f.state().AbortRequested && f.cancelled() != ""
	}, Abort, Facts.cancelled},
	{"Running", func(f Facts) bool { return begun(f.Migration) }, Wait, Facts.waitsFor},

	{"Invalid", func(f Facts) bool { return f.pending() && f.invalid() != "" }, Fail, Facts.invalid},
	{"Waits", func(f Facts) bool { return f.pending() && f.waits() != "" }, Wait, Facts.waits},
	{"Adopt", func(f Facts) bool { return !f.adopted() }, Adopt, text("the migration begins")},
	{"Begin", Facts.pending, Begin, text("the migration begins")},

	{"NotKept", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target == nil && !f.Kept }, Expand, text("a second launcher pod is to come")},
	{"NoTarget", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target == nil }, MakePod, text("the target pod is made")},
	{"TargetFails", func(f Facts) bool { return f.targetFails() != "" }, Fail, Facts.targetFails},
	{"TargetRuns", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) && f.Target.Ready }, Schedule, text("the target pod runs")},
	{"TargetStarts", func(f Facts) bool { return f.in(kubevirt.MigrationScheduling) }, Wait, func(f Facts) string {
		return "target pod " + f.Target.Name + " starts"
	}},
	{"AgentSilent", func(f Facts) bool { return f.left() <= 0 }, Fail, Facts.silent},
	{"AgentsTurn", func(Facts) bool { return true }, Wait, Facts.waitsFor},
}

// Next decides what the controller does.
func Next(f Facts) Step {
	for _, rule := range controllerRules {
		if rule.holds(f) {
			return Step{Action: rule.action, Reason: rule.reason, Message: rule.text(f), Again: f.again(rule.action)}
		}
	}
	return Step{} // not reached: the last rule always holds
}

func (f Facts) begunAndSaid(word string) bool {
	return begun(f.Migration) && f.state().TargetState == word
}

// again is when a wait may be over though nothing happens.
func (f Facts) again(a Action) time.Duration {
	if a != Wait || f.Migration.Final() || begun(f.Migration) || f.pending() {
		return 0
	}
	return max(time.Second, f.left())
}

// left is how long the present phase may still take.
func (f Facts) left() time.Duration {
	if f.in(kubevirt.MigrationScheduling) {
		if f.Target == nil {
			return StartFor
		}
		left := f.Target.Created.Add(StartFor).Sub(f.Now)
		if f.Target.Unschedulable != "" {
			left = min(left, f.Target.Since.Add(UnschedulableFor).Sub(f.Now))
		}
		return left
	}
	// The writer's clock may be another one: what counts is when it was seen.
	return min(f.Seen.Add(AgentFor).Sub(f.Now), AgentFor)
}

func (f Facts) silent() string {
	node := f.state().TargetNode
	if f.in(kubevirt.MigrationTargetReady) {
		node = f.state().SourceNode
	}
	return fmt.Sprintf("the agent of node %s did not take the migration on within %v of %s: look at its log and its --migration-listen", node, AgentFor, f.phase())
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
		return "the agent of node " + f.state().SourceNode + " is to say what became of its QEMU"
	}
	return "the agent of node " + f.state().SourceNode + " moves the guest"
}

func text(s string) func(Facts) string { return func(Facts) string { return s } }
