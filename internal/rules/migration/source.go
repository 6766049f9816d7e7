package migration

import (
	"cmp"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Guest is the state of the guest at the source.
type Guest string

// States of the guest at the source.
const (
	GuestRuns    Guest = "Runs"    // running, or paused, but not by the migration
	GuestPaused  Guest = "Paused"  // whole, and the migration is over; also one that was sent paused
	GuestGone    Guest = "Gone"    // QEMU has ended, by its pidfd
	GuestUnknown Guest = "Unknown" // libvirt does not answer
)

// SourceFacts is what the source's agent knows.
type SourceFacts struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Gone means that the API server has confirmed that the migration no longer exists.
	Gone  bool
	Guest Guest
	// JobRuns means that libvirt's call has not returned, or that libvirt has an outgoing
	// migration of the domain.
	JobRuns bool
	// Failed is the error of libvirt's call, in one line.
	Failed string
	// RanOn means that the guest was observed to run after the job. It stays true after the
	// end of its QEMU.
	RanOn bool
	// Target is the state that the target's agent has reported, in a message or in the
	// status: TargetArrived, TargetRunning, TargetAbsent or empty.
	Target string
	// Ending is why the guest has to be shut down at the source, in one line, or "": the
	// VMI is deleted, the launcher is signalled, the node shuts down.
	Ending string
	// Since is the time since the start of the job, NoProgress since the remaining memory
	// last decreased. Memory is the guest's memory in bytes. They are set only while the job
	// runs.
	Since, NoProgress time.Duration
	Memory            int64
	// HeldFor is how long the VM's shutdown has been held for the migration, 0 if it is
	// not held.
	HeldFor time.Duration
	// Paused means that the guest was paused to let the migration complete.
	Paused bool
	// Native means that this node's libvirt sends guests directly. Refused is why it cannot
	// send this guest, in one line, or "".
	Native  bool
	Refused string
	// Stopped means that the guest is paused, but not by its user, and is not being sent.
	Stopped bool
	// ByUser means that the guest is paused by its user, or was when it was sent: it stays
	// so. KeepsPaused means that the target's agent leaves it paused, TooOld that it would
	// resume it. Both are false until it was heard.
	ByUser, KeepsPaused, TooOld bool
	// NotResumed means that the guest's launcher does not let it go on, although it was asked.
	NotResumed bool
	// Linked means that the target's agent is connected. FencedByPeer means that it has said that
	// this node is fenced.
	Linked, FencedByPeer bool
	// ArrivedSo means that it has arrived on this node paused.
	ArrivedSo bool
}

// SourceAction is a step of the source's agent.
type SourceAction string

// Actions of the source.
const (
	SourceNothing       SourceAction = "Nothing"
	SourceWait          SourceAction = "Wait"
	SourceBegin         SourceAction = "Begin"         // write Running over the phase that was read; if accepted, start libvirt's migration
	SourceFollow        SourceAction = "Follow"        // write the progress to the status
	SourcePause         SourceAction = "Pause"         // pause the guest, write the time, send the message as an Event
	SourceAbort         SourceAction = "Abort"         // abort the job; if that has no effect, close the relay
	SourceEnd           SourceAction = "End"           // end QEMU
	SourceResume        SourceAction = "Resume"        // resume the guest
	SourceReportGone    SourceAction = "SayGone"       // record that the guest has moved, report Gone
	SourceReportRunning SourceAction = "ReportRunning" // report Running with the reason: the migration cannot begin any more
	SourceQuery         SourceAction = "Query"         // ask the target's agent for its state: nothing more is sent
)

// SourceStep is the next step of the source's agent. Message is the migration's
// failureReason if the action is SourceReportRunning.
type SourceStep struct {
	Action  SourceAction
	Reason  string
	Message string
}

func (f SourceFacts) reported(state string) bool { return StateOf(f.Migration).SourceState == state }

// fenced reports whether the controller has given up this node, and with it the guest here.
func (f SourceFacts) fenced() bool {
	return f.FencedByPeer || StateOf(f.Migration).SourceFenced != "" && f.reported(kubevirt.SourceGone)
}

func (f SourceFacts) final() bool { return f.Gone || f.Migration.Final() }

// begun reports the begin even if the status does not show it yet: only this agent starts
// jobs.
func (f SourceFacts) begun() bool { return begun(f.Migration) || f.JobRuns || f.Guest == GuestPaused }

// abort returns why the migration has to be aborted, in one line, or "".
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

// tooLong returns which timeout the job has exceeded, in one line, or "".
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

// tooBusy returns why the guest has to be paused to let the migration complete, in one line,
// or "".
func (f SourceFacts) tooBusy() string {
	o := StateOf(f.Migration).Options
	if o == nil || o.PauseAfter <= 0 || f.Paused || f.ByUser {
		return ""
	}
	if after := time.Duration(o.PauseAfter) * time.Second; f.HeldFor >= after {
		return fmt.Sprintf("the guest is paused until it runs on node %s: it is still being sent %v after its launcher was told to end (pauseAfter)",
			StateOf(f.Migration).TargetNode, after)
	}
	return ""
}

func (f SourceFacts) whyFailed() string {
	return cmp.Or(f.abort(), StateOf(f.Migration).FailureReason, f.Failed, "the migration has ended, and the guest runs on")
}

// unlike returns why this node cannot send the guest by the transport that the target
// expects, in one line, or "".
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
	// The controller has given up this node. The target resumes its copy, unless it has reported
	// that it has none. While it is connected, it waits for this side.
	{"Fenced", func(f SourceFacts) bool {
		return f.fenced() && f.Guest != GuestGone && f.Target != kubevirt.TargetAbsent && (f.Target != "" || !f.Linked)
	}, SourceEnd, fixed("this node was fenced: the guest goes on at the target")},
	{"FencedGone", func(f SourceFacts) bool {
		return f.fenced() && f.Guest == GuestGone && f.Target != kubevirt.TargetAbsent && !f.Migration.Final()
	}, SourceReportGone, fixed("this node was fenced, and QEMU has ended here")},
	{"FencedMoving", func(f SourceFacts) bool { return f.fenced() && f.JobRuns && f.Guest != GuestGone }, SourceAbort, fixed("this node was fenced")},
	{"FencedUnknown", func(f SourceFacts) bool { return f.fenced() && f.Guest != GuestGone && f.Target == "" },
		SourceQuery, fixed("this node was fenced: the guest stays unless the target has all of it")},
	{"FencedAlone", func(f SourceFacts) bool {
		return f.fenced() && !f.JobRuns && (f.Guest == GuestRuns || f.Guest == GuestPaused && f.ByUser)
	}, SourceNothing, fixed("this node was fenced, and the guest did not arrive at the target")},

	// A reported state is final.
	{"ReportedRunning", func(f SourceFacts) bool {
		return f.reported(kubevirt.SourceRunning) && (f.Guest != GuestPaused || f.ByUser || f.NotResumed) && !f.JobRuns
	},
		SourceNothing, fixed("the guest stayed here")},
	{"ReportedGone", func(f SourceFacts) bool { return f.reported(kubevirt.SourceGone) && f.Guest == GuestGone },
		SourceNothing, fixed("the guest has left")},
	{"Aborted", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone && f.abort() != "" }, SourceAbort, SourceFacts.abort},
	{"TooLong", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone && f.tooLong() != "" }, SourceAbort, SourceFacts.tooLong},
	{"TooBusy", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone && f.tooBusy() != "" }, SourcePause, SourceFacts.tooBusy},
	{"Moving", func(f SourceFacts) bool { return f.JobRuns && f.Guest != GuestGone }, SourceFollow, fixed("the guest's memory is sent")},
	{"ReportedAll", func(f SourceFacts) bool {
		return f.Guest == GuestUnknown && !f.JobRuns && f.final() && StateOf(f.Migration).SourceState != ""
	}, SourceNothing, fixed("the migration is over, and the guest's state was reported")},
	{"Unknown", func(f SourceFacts) bool { return f.Guest == GuestUnknown }, SourceWait, fixed("libvirt does not answer")},

	// No job of libvirt runs in the following rules.
	{"RanOn", func(f SourceFacts) bool { return f.RanOn && f.begun() }, SourceReportRunning, SourceFacts.whyFailed},
	{"QEMUGone", func(f SourceFacts) bool { return f.Guest == GuestGone && f.begun() && !f.Migration.Final() }, SourceReportGone, fixed("QEMU has ended here")},
	{"RunsOn", func(f SourceFacts) bool { return f.Guest == GuestRuns && f.begun() && !f.final() }, SourceReportRunning, SourceFacts.whyFailed},
	{"ArrivedThere", func(f SourceFacts) bool {
		return f.Guest == GuestPaused && (f.Target == kubevirt.TargetArrived || f.Target == kubevirt.TargetRunning)
	}, SourceEnd, fixed("the guest is complete at the target: it ends here")},
	{"StaysPaused", func(f SourceFacts) bool {
		return f.Guest == GuestPaused && f.ByUser && f.Target == kubevirt.TargetAbsent
	}, SourceReportRunning, SourceFacts.whyFailed},
	{"NotResumed", func(f SourceFacts) bool {
		return f.Guest == GuestPaused && f.Target == kubevirt.TargetAbsent && f.NotResumed
	},
		SourceReportRunning, func(f SourceFacts) string { return f.whyFailed() + "; its launcher does not let it go on" }},
	{"NotThere", func(f SourceFacts) bool { return f.Guest == GuestPaused && f.Target == kubevirt.TargetAbsent }, SourceResume,
		fixed("the guest did not arrive: it goes on here")},
	{"Undecided", func(f SourceFacts) bool { return f.Guest == GuestPaused }, SourceQuery,
		fixed("the guest stays paused until the target's agent says whether it arrived")},

	// The migration has not begun in the following rules.
	{"Ended", SourceFacts.final, SourceNothing, fixed("the migration is over")},
	{"NoGuest", func(f SourceFacts) bool { return f.Guest == GuestGone }, SourceReportRunning, fixed("the VM has ended on this node")},
	{"Ending", func(f SourceFacts) bool { return f.abort() != "" }, SourceReportRunning, SourceFacts.abort},
	{"Stopped", func(f SourceFacts) bool { return f.Stopped }, SourceReportRunning, fixed("the guest is paused, and not by its user: it can be moved once it runs")},
	// Its disks are inactive until it runs: QEMU 7.2 fails if it sends such a guest.
	{"NeverRan", func(f SourceFacts) bool { return f.ByUser && f.ArrivedSo }, SourceReportRunning,
		fixed("the guest arrived on this node paused, and QEMU cannot send it again so: it can be moved while it runs")},
	{"WouldRun", func(f SourceFacts) bool { return f.ByUser && f.TooOld }, SourceReportRunning, func(f SourceFacts) string {
		return fmt.Sprintf("the guest is paused, and the agent of node %s is too old to leave it so", StateOf(f.Migration).TargetNode)
	}},
	{"NotHeard", func(f SourceFacts) bool { return f.ByUser && !f.KeepsPaused }, SourceWait,
		fixed("whether the target's agent leaves the guest paused is not known yet")},
	{"Unlike", func(f SourceFacts) bool {
		return f.Migration.Status.Phase == kubevirt.MigrationTargetReady && f.unlike() != ""
	}, SourceReportRunning, SourceFacts.unlike},
	{"Begin", func(f SourceFacts) bool { return f.Migration.Status.Phase == kubevirt.MigrationTargetReady }, SourceBegin,
		fixed("the target is ready")},
	{"Waiting", func(SourceFacts) bool { return true }, SourceWait, fixed("the target's turn")},
}

// NextOfSource returns the next step of the source's agent.
func NextOfSource(f SourceFacts) SourceStep {
	for _, rule := range sourceRules {
		if rule.holds(f) {
			return SourceStep{Action: rule.action, Reason: rule.reason, Message: rule.message(f)}
		}
	}
	return SourceStep{} // not reached: the last rule always holds
}

func fixed(text string) func(SourceFacts) string { return func(SourceFacts) string { return text } }
