package migration

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Copy is the state of the guest at the target.
type Copy string

// States of the guest at the target.
const (
	CopyNone     Copy = "None"     // no domain of this migration
	CopyIncoming Copy = "Incoming" // its memory is arriving
	CopyComplete Copy = "Complete" // arrived completely, paused by the migration
	CopyRunning  Copy = "Running"  // resumed
	CopyUnknown  Copy = "Unknown"  // libvirt does not answer
)

// TargetFacts is what the target's agent knows.
type TargetFacts struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Gone means that the API server has confirmed that the migration no longer exists.
	Gone bool
	Copy Copy
	// JobRuns means that libvirt has a job of the incoming migration, or that the relay
	// connection is open. The guest may still arrive.
	JobRuns bool
	// Closed means that the relay connection has ended, and no further one is accepted. A
	// migration has one relay connection. An agent that starts and finds the migration
	// Running accepts none.
	Closed bool
	// Queried means that the source's agent has asked for this state: its libvirt sends
	// nothing more.
	Queried bool
	// Source is the state that the source's agent has reported, in a message or in the
	// status: SourceGone, SourceRunning or empty. It is final.
	Source string
	// FencedFor is how long this agent has known that the source's node is fenced, without a
	// connection to its agent; 0 unless SourceGone is only the controller's word.
	FencedFor time.Duration
	// Paused means that its user had paused the guest when it was sent. It stays so.
	Paused bool
	// NotResumed means that the guest's launcher does not let it go on, although it was asked.
	NotResumed bool
	// Ready means that the certificate, libvirt and the launcher are there.
	Ready bool
	// Refused is why this node cannot take the VM, in one line, or "".
	Refused string
}

// TargetAction is a step of the target's agent.
type TargetAction string

// Actions of the target.
const (
	TargetNothing       TargetAction = "Nothing"
	TargetWait          TargetAction = "Wait"
	TargetPrepare       TargetAction = "Prepare"       // write phase PreparingTarget
	TargetOffer         TargetAction = "Offer"         // write phase TargetReady with the address
	TargetRefuse        TargetAction = "Refuse"        // report Absent with the reason
	TargetHold          TargetAction = "Hold"          // report Arrived, leave the guest paused
	TargetResume        TargetAction = "Resume"        // resume the guest
	TargetReportRunning TargetAction = "ReportRunning" // report Running
	TargetRemove        TargetAction = "Remove"        // remove the guest
	TargetReportAbsent  TargetAction = "ReportAbsent"  // report Absent
)

// TargetStep is the next step of the target's agent.
type TargetStep struct {
	Action  TargetAction
	Reason  string
	Message string
}

func (f TargetFacts) phase() kubevirt.MigrationPhase { return f.Migration.Status.Phase }

// givenUp reports whether the migration ended before it began. A guest here is not needed
// then.
func (f TargetFacts) givenUp() bool {
	return (f.phase() == kubevirt.MigrationFailed || f.Gone) && !begun(f.Migration)
}

// closed reports whether the agreed transport has ended, or the source's agent says that
// nothing more is sent. If libvirt sends directly, only that agent knows.
func (f TargetFacts) closed() bool {
	return f.Queried || !native(f.Migration) && (f.Closed || f.Gone)
}

// over reports whether nothing more arrives from the source.
func (f TargetFacts) over() bool {
	return !f.JobRuns && (f.closed() || f.Source != "" || f.givenUp() || f.phase() == kubevirt.MigrationFailed)
}

// before reports whether the migration is in one of these phases before Running.
func (f TargetFacts) before(phases ...kubevirt.MigrationPhase) bool {
	return !f.Gone && slices.Contains(phases, f.phase())
}

// FenceDelay is how long a target waits after the source's node was fenced and its agent is no
// longer connected. The agent of a node that lives ends its guest in that time.
const FenceDelay = 10 * time.Second

// maybeAlive reports whether the agent of a fenced source may still end its guest by itself.
func (f TargetFacts) maybeAlive() bool { return f.FencedFor > 0 && f.FencedFor < FenceDelay }

// targetRules are read from top to bottom: the first that holds decides.
var targetRules = []struct {
	reason  string
	holds   func(TargetFacts) bool
	action  TargetAction
	message string
}{
	// Absent is final: the source may have resumed its guest. A guest that runs here all the same
	// was resumed before this node was fenced.
	{"Fenced", func(f TargetFacts) bool { return f.Copy == CopyRunning && StateOf(f.Migration).TargetFenced != "" },
		TargetRemove, "this node was fenced: the guest was given up"},
	{"RanOnAtSource", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.Source == kubevirt.SourceRunning },
		TargetRemove, "the guest ran on at the source: what arrived is stale"},
	{"ReportedAbsent", func(f TargetFacts) bool {
		return (f.Copy == CopyComplete || f.Copy == CopyIncoming) && StateOf(f.Migration).TargetState == kubevirt.TargetAbsent
	}, TargetRemove, "this node has reported the guest as absent"},
	{"Arrived", func(f TargetFacts) bool { return f.Copy == CopyRunning && !f.reported(kubevirt.TargetRunning) },
		TargetReportRunning, "the guest runs here"},
	{"Moved", func(f TargetFacts) bool { return f.Copy == CopyRunning }, TargetNothing, "the guest runs here"},
	{"Unknown", func(f TargetFacts) bool { return f.Copy == CopyUnknown }, TargetWait, "libvirt does not answer"},
	{"FencedSource", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.maybeAlive() },
		TargetHold, "the source's node was fenced: its agent has a moment to end the guest there"},
	{"ArrivedPaused", func(f TargetFacts) bool { return f.staysPaused() && !f.reported(kubevirt.TargetRunning) },
		TargetReportRunning, "the guest is here alone, paused by its user"},
	{"MovedPaused", TargetFacts.staysPaused, TargetNothing, "the guest is here alone, paused by its user"},
	{"ArrivedNotResumed", func(f TargetFacts) bool {
		return f.Copy == CopyComplete && f.Source == kubevirt.SourceGone && f.NotResumed && !f.reported(kubevirt.TargetRunning)
	}, TargetReportRunning, "the guest is here alone, and its launcher does not let it go on"},
	{"MovedNotResumed", func(f TargetFacts) bool {
		return f.Copy == CopyComplete && f.Source == kubevirt.SourceGone && f.NotResumed
	}, TargetNothing, "the guest is here alone, and its launcher does not let it go on"},
	{"SourceGone", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.Source == kubevirt.SourceGone },
		TargetResume, "QEMU of the source is gone: the guest goes on here"},
	{"GivenUp", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.givenUp() },
		TargetRemove, "the migration ended before it began"},
	{"Undecided", func(f TargetFacts) bool { return f.Copy == CopyComplete },
		TargetHold, "the guest has arrived and stays paused until the source's agent says what became of its QEMU"},
	{"Stale", func(f TargetFacts) bool {
		return f.Copy == CopyIncoming && (f.givenUp() || f.Source == kubevirt.SourceRunning || !f.JobRuns || f.FencedFor > 0 && !f.maybeAlive())
	}, TargetRemove, "nothing more comes from the source"},
	{"Arriving", func(f TargetFacts) bool { return f.Copy == CopyIncoming }, TargetWait, "the guest's memory arrives"},

	// There is no copy in the following rules.
	{"Absent", func(f TargetFacts) bool { return f.reported(kubevirt.TargetAbsent) }, TargetNothing, "the guest is not here"},
	{"Over", TargetFacts.over, TargetReportAbsent, "the migration is over and the guest is not here"},
	{"Refused", func(f TargetFacts) bool {
		return f.Refused != "" && f.before(kubevirt.MigrationScheduled, kubevirt.MigrationPreparingTarget)
	}, TargetRefuse, ""},
	{"Scheduled", func(f TargetFacts) bool { return f.before(kubevirt.MigrationScheduled) }, TargetPrepare,
		"the target's agent prepares"},
	{"Ready", func(f TargetFacts) bool { return f.before(kubevirt.MigrationPreparingTarget) && f.Ready }, TargetOffer,
		"the target is ready"},
	{"Waiting", func(TargetFacts) bool { return true }, TargetWait, "the source's turn"},
}

// NextOfTarget returns the next step of the target's agent.
func NextOfTarget(f TargetFacts) TargetStep {
	for _, rule := range targetRules {
		if rule.holds(f) {
			return TargetStep{Action: rule.action, Reason: rule.reason, Message: cmp.Or(rule.message, f.Refused)}
		}
	}
	return TargetStep{} // not reached: the last rule always holds
}

func (f TargetFacts) reported(state string) bool { return StateOf(f.Migration).TargetState == state }

// staysPaused reports whether the guest has moved, and its user had paused it.
func (f TargetFacts) staysPaused() bool {
	return f.Paused && f.Copy == CopyComplete && f.Source == kubevirt.SourceGone
}
