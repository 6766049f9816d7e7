package migration

import (
	"cmp"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Guest is what the source has of a guest.
type Guest string

// Guests.
const (
	GuestRuns    Guest = "Runs"    // running, or paused by its user
	GuestPaused  Guest = "Paused"  // paused by the migration, which is over
	GuestGone    Guest = "Gone"    // QEMU has ended, by its pidfd
	GuestUnknown Guest = "Unknown" // libvirt does not answer
)

// SourceFacts is what the source's agent knows.
type SourceFacts struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Gone: the API server says by its name that there is no such migration.
	Gone  bool
	Guest Guest
	// JobRuns: libvirt's call has not returned, or libvirt has an outgoing
	// migration of the domain.
	JobRuns bool
	// Failed is libvirt's own word on the end of the call, in one line.
	Failed string
	// RanOn: the guest was seen to run after the job. It stays true, also when
	// its QEMU has ended since.
	RanOn bool
	// Target is what the target's agent said, on the connection of the two or in
	// the migration: TargetArrived, TargetRunning, TargetAbsent or empty.
	Target string
	// Ending: VMI deleted, launcher signalled, node shut down: why the guest has
	// to be shut down where it is, in one line.
	Ending string
	// Since libvirt began, since the amount that remains last became less, and
	// the guest's memory in bytes: only while the job runs.
	Since, NoProgress time.Duration
	Memory            int64
	// HeldFor is how long the shutdown that the launcher was signalled for has been
	// held, 0 while it is not.
	HeldFor time.Duration
	// Paused: the guest was paused so that it can be sent.
	Paused bool
	// Native: libvirt of this node is to send guests by itself. Refused is why it
	// cannot send this one, in one line; empty = it can.
	Native  bool
	Refused string
	// Stopped: somebody has paused the guest, and it is not being sent.
	Stopped bool
}

// SourceAction is a step of the source's agent.
type SourceAction string

// Actions of the source.
const (
	SourceNothing    SourceAction = "Nothing"
	SourceWait       SourceAction = "Wait"
	SourceBegin      SourceAction = "Begin"      // write Running over what was read; accepted: have libvirt migrate
	SourceFollow     SourceAction = "Follow"     // tell the progress
	SourcePause      SourceAction = "Pause"      // pause the guest, tell when, with the message in an Event
	SourceAbort      SourceAction = "Abort"      // abort the job; without effect: close the relay
	SourceEnd        SourceAction = "End"        // end QEMU, then look again
	SourceResume     SourceAction = "Resume"     // resume the guest, then say Running
	SourceSayGone    SourceAction = "SayGone"    // record that it moved, say Gone
	SourceSayRunning SourceAction = "SayRunning" // say Running with the reason: from then on it never begins
	SourceAsk        SourceAction = "Ask"        // ask the target's agent what it has: nothing more is sent
)

// SourceStep is what the source's agent does next. Message is the migration's
// failureReason where the action says Running.
type SourceStep struct {
	Action  SourceAction
	Reason  string
	Message string
}

func (f SourceFacts) said(word string) bool { return StateOf(f.Migration).SourceState == word }

func (f SourceFacts) final() bool { return f.Gone || f.Migration.Final() }

// begun as far as this agent knows: a job is its own.
func (f SourceFacts) begun() bool { return begun(f.Migration) || f.JobRuns || f.Guest == GuestPaused }

// abort tells why the migration is to end, in one line, or is empty.
func (f SourceFacts) abort() string {
	switch s := StateOf(f.Migration); {
	case f.Ending != "":
		return f.Ending
	case f.Migration.DeletionTimestamp != nil || f.Gone:
		return "the migration was deleted"
	case s.AbortRequested:
		return cmp.Or(s.FailureReason, "the migration was aborted")
	}
	return ""
}

const gib = 1 << 30

// tooLong tells which bound the job is over, in one line, or is empty.
func (f SourceFacts) tooLong() string {
	o := StateOf(f.Migration).Options
	if o == nil {
		return ""
	}
	gibs := max(1, (f.Memory+gib-1)/gib)
	if most := time.Duration(o.CompletionTimeoutPerGiB*gibs) * time.Second; most > 0 && f.Since > most {
		return fmt.Sprintf("not complete after %v (completionTimeoutPerGiB is %d s, %d GiB of memory)", most, o.CompletionTimeoutPerGiB, gibs)
	}
	if most := time.Duration(o.ProgressTimeout) * time.Second; most > 0 && f.NoProgress > most {
		return fmt.Sprintf("no progress for %v: the guest changes its memory faster than it is sent", most)
	}
	return ""
}

// tooBusy tells why the guest has to be paused for its migration to end, in one
// line, or is empty.
func (f SourceFacts) tooBusy() string {
	o := StateOf(f.Migration).Options
	if o == nil || o.PauseAfter <= 0 || f.Paused {
		return ""
	}
	if after := time.Duration(o.PauseAfter) * time.Second; f.HeldFor >= after {
		return fmt.Sprintf("the guest is paused until it runs on node %s: it is still being sent %v after its launcher was told to end (pauseAfter)",
			StateOf(f.Migration).TargetNode, after)
	}
	return ""
}

func (f SourceFacts) whyFailed() string {
	return cmp.Or(f.abort(), StateOf(f.Migration).FailureReason, f.Failed, "libvirt ended the migration and the guest runs on")
}

// unlike tells why this node does not send a guest as the target expects it, in one
// line, or is empty.
func (f SourceFacts) unlike() string {
	target := StateOf(f.Migration).TargetNode
	switch {
	case f.Native && !native(f.Migration):
		return fmt.Sprintf("this node sends guests by --migration-uri, which the agent of node %s does not have: give it to all nodes or to none", target)
	case !f.Native && native(f.Migration):
		return fmt.Sprintf("node %s takes guests by --migration-uri, which the agent of this node does not have: give it to all nodes or to none", target)
	}
	return f.Refused
}

// sourceRules are read from top to bottom: the first that holds decides.
var sourceRules = []struct {
	reason  string
	holds   func(SourceFacts) bool
	action  SourceAction
	message func(SourceFacts) string
}{
	// A word that was given stays.
	{"SaidRunning", func(f SourceFacts) bool {
		return f.said(kubevirt.SourceRunning) && f.Guest != GuestPaused && !f.JobRuns
	},
		SourceNothing, says("the guest stayed here")},
	{"SaidGone", func(f SourceFacts) bool { return f.said(kubevirt.SourceGone) && f.Guest == GuestGone },
		SourceNothing, says("the guest has left")},
	{"Aborted", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone && f.abort() != "" }, SourceAbort, SourceFacts.abort},
	{"TooLong", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone && f.tooLong() != "" }, SourceAbort, SourceFacts.tooLong},
	{"TooBusy", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone && f.tooBusy() != "" }, SourcePause, SourceFacts.tooBusy},
	{"Moving", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone }, SourceFollow, says("the guest's memory is sent")},
	{"SaidAll", func(f SourceFacts) bool {
		return f.Guest == GuestUnknown && !f.JobRuns && f.final() && StateOf(f.Migration).SourceState != ""
	}, SourceNothing, says("the migration is over, and what became of the guest was said")},
	{"Unknown", func(f SourceFacts) bool { return f.Guest == GuestUnknown }, SourceWait, says("libvirt does not say what is here")},

	// From here on libvirt's job is over, or was never begun.
	{"RanOn", func(f SourceFacts) bool { return f.RanOn && f.begun() }, SourceSayRunning, SourceFacts.whyFailed},
	{"QEMUGone", func(f SourceFacts) bool { return f.Guest == GuestGone && f.begun() && !f.Migration.Final() }, SourceSayGone, says("QEMU has ended here")},
	{"RunsOn", func(f SourceFacts) bool { return f.Guest == GuestRuns && f.begun() && !f.final() }, SourceSayRunning, SourceFacts.whyFailed},
	{"ArrivedThere", func(f SourceFacts) bool {
		return f.Guest == GuestPaused && (f.Target == kubevirt.TargetArrived || f.Target == kubevirt.TargetRunning)
	}, SourceEnd, says("the guest is complete at the target: it ends here")},
	{"NotThere", func(f SourceFacts) bool { return f.Guest == GuestPaused && f.Target == kubevirt.TargetAbsent }, SourceResume,
		says("the guest did not arrive: it goes on here")},
	{"Undecided", func(f SourceFacts) bool { return f.Guest == GuestPaused }, SourceAsk,
		says("the guest stays paused until the target's agent says whether it arrived")},

	// Not begun.
	{"Ended", SourceFacts.final, SourceNothing, says("the migration is over")},
	{"NoGuest", func(f SourceFacts) bool { return f.Guest == GuestGone }, SourceSayRunning, says("the VM has ended on this node")},
	{"Ending", func(f SourceFacts) bool { return f.abort() != "" }, SourceSayRunning, SourceFacts.abort},
	// At the target it would run on.
	{"Stopped", func(f SourceFacts) bool { return f.Stopped }, SourceSayRunning, says("the guest is paused: it can be moved once it runs")},
	{"Unlike", func(f SourceFacts) bool {
		return f.Migration.Status.Phase == kubevirt.MigrationTargetReady && f.unlike() != ""
	}, SourceSayRunning, SourceFacts.unlike},
	{"Begin", func(f SourceFacts) bool { return f.Migration.Status.Phase == kubevirt.MigrationTargetReady }, SourceBegin,
		says("the target is ready")},
	{"Waiting", func(SourceFacts) bool { return true }, SourceWait, says("the target's turn")},
}

// NextOfSource decides what the source's agent does.
func NextOfSource(f SourceFacts) SourceStep {
	for _, rule := range sourceRules {
		if rule.holds(f) {
			return SourceStep{Action: rule.action, Reason: rule.reason, Message: rule.message(f)}
		}
	}
	return SourceStep{} // not reached: the last rule always holds
}

func says(text string) func(SourceFacts) string { return func(SourceFacts) string { return text } }
