package migration

import (
	"cmp"
	"slices"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Copy is what the target has of a guest.
type Copy string

// Copies.
const (
	CopyNone     Copy = "None"     // no domain of this migration
	CopyIncoming Copy = "Incoming" // its memory is arriving
	CopyComplete Copy = "Complete" // all is there, paused by the migration
	CopyRunning  Copy = "Running"  // resumed
	CopyUnknown  Copy = "Unknown"  // libvirt does not answer
)

// TargetFacts is what the target's agent knows.
type TargetFacts struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Gone: the API server says by its name that there is no such migration.
	Gone bool
	Copy Copy
	// JobRuns: libvirt still works on the incoming migration, or its connection
	// to this agent's relay is open: what is not there may yet come.
	JobRuns bool
	// Closed: the source's connection to this agent's relay has ended and none is
	// let in again. One connection is all that a migration has; an agent that
	// starts and finds it Running lets none in.
	Closed bool
	// Queried: the source's agent has asked what is here, as its libvirt sends nothing
	// more.
	Queried bool
	// Source is what the source's agent said, on the connection of the two or in
	// the migration: SourceGone, SourceRunning or empty. It is remembered.
	Source string
	// Ready: what a migration needs is there: listener, libvirt, launcher.
	Ready bool
	// Refused is why this node cannot take the VM, in one line; empty = it can.
	Refused string
}

// TargetAction is a step of the target's agent.
type TargetAction string

// Actions of the target.
const (
	TargetNothing TargetAction = "Nothing"
	TargetWait    TargetAction = "Wait"
	TargetPrepare TargetAction = "Prepare" // say PreparingTarget, get ready
	TargetOffer   TargetAction = "Offer"   // say TargetReady with the address
	TargetRefuse  TargetAction = "Refuse"  // say Absent with the reason
	TargetHold    TargetAction = "Hold"    // say Arrived, leave it paused
	TargetResume  TargetAction = "Resume"  // record it, resume it, say Running
	TargetTell    TargetAction = "Tell"    // say Running
	TargetRemove  TargetAction = "Remove"  // end it, then look again
	TargetSayGone TargetAction = "SayGone" // say Absent
)

// TargetStep is what the target's agent does next.
type TargetStep struct {
	Action  TargetAction
	Reason  string
	Message string
}

func (f TargetFacts) phase() kubevirt.MigrationPhase { return f.Migration.Status.Phase }

// givenUp: the migration ended before libvirt began, so that nothing that runs
// depends on what is here.
func (f TargetFacts) givenUp() bool {
	return (f.phase() == kubevirt.MigrationFailed || f.Gone) && !begun(f.Migration)
}

// closed: by the way that was agreed nothing comes any more. Where libvirt sends by
// itself, only the source's agent knows.
func (f TargetFacts) closed() bool {
	if native(f.Migration) {
		return f.Queried
	}
	return f.Closed || f.Gone
}

// over: nothing of the source comes any more.
func (f TargetFacts) over() bool {
	return !f.JobRuns && (f.closed() || f.Source != "" || f.givenUp() || f.phase() == kubevirt.MigrationFailed)
}

// before reports whether it is in one of these phases, of before the source begins.
func (f TargetFacts) before(phases ...kubevirt.MigrationPhase) bool {
	return !f.Gone && slices.Contains(phases, f.phase())
}

// targetRules are read from top to bottom: the first that holds decides.
var targetRules = []struct {
	reason  string
	holds   func(TargetFacts) bool
	action  TargetAction
	message string
}{
	// What has said Absent stays absent: the source may have resumed its guest.
	{"RanOnAtSource", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.Source == kubevirt.SourceRunning },
		TargetRemove, "the guest ran on at the source: what arrived is stale"},
	{"SaidAbsent", func(f TargetFacts) bool {
		return (f.Copy == CopyComplete || f.Copy == CopyIncoming) && StateOf(f.Migration).TargetState == kubevirt.TargetAbsent
	}, TargetRemove, "this node has said that the guest is not here"},
	{"Arrived", func(f TargetFacts) bool { return f.Copy == CopyRunning && !f.told(kubevirt.TargetRunning) },
		TargetTell, "the guest runs here"},
	{"Moved", func(f TargetFacts) bool { return f.Copy == CopyRunning }, TargetNothing, "the guest runs here"},
	{"Unknown", func(f TargetFacts) bool { return f.Copy == CopyUnknown }, TargetWait, "libvirt does not say what is here"},
	{"SourceGone", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.Source == kubevirt.SourceGone },
		TargetResume, "QEMU of the source is gone: the guest goes on here"},
	{"GivenUp", func(f TargetFacts) bool { return f.Copy == CopyComplete && f.givenUp() },
		TargetRemove, "the migration ended before it began"},
	{"Undecided", func(f TargetFacts) bool { return f.Copy == CopyComplete },
		TargetHold, "the guest has arrived and stays paused until the source's agent says what became of its QEMU"},
	{"Stale", func(f TargetFacts) bool {
		return f.Copy == CopyIncoming && (f.givenUp() || f.Source == kubevirt.SourceRunning || !f.JobRuns)
	}, TargetRemove, "nothing more comes from the source"},
	{"Arriving", func(f TargetFacts) bool { return f.Copy == CopyIncoming }, TargetWait, "the guest's memory arrives"},

	// From here on there is no copy.
	{"Absent", func(f TargetFacts) bool { return f.told(kubevirt.TargetAbsent) }, TargetNothing, "the guest is not here"},
	{"Over", TargetFacts.over, TargetSayGone, "the migration is over and the guest is not here"},
	{"Refused", func(f TargetFacts) bool {
		return f.Refused != "" && f.before(kubevirt.MigrationScheduled, kubevirt.MigrationPreparingTarget)
	}, TargetRefuse, ""},
	{"Scheduled", func(f TargetFacts) bool { return f.before(kubevirt.MigrationScheduled) }, TargetPrepare,
		"the target's agent prepares"},
	{"Ready", func(f TargetFacts) bool { return f.before(kubevirt.MigrationPreparingTarget) && f.Ready }, TargetOffer,
		"the target is ready"},
	{"Waiting", func(TargetFacts) bool { return true }, TargetWait, "the source's turn"},
}

// NextOfTarget decides what the target's agent does.
func NextOfTarget(f TargetFacts) TargetStep {
	for _, rule := range targetRules {
		if rule.holds(f) {
			return TargetStep{Action: rule.action, Reason: rule.reason, Message: cmp.Or(rule.message, f.Refused)}
		}
	}
	return TargetStep{} // not reached: the last rule always holds
}

func (f TargetFacts) told(word string) bool { return StateOf(f.Migration).TargetState == word }
