package migration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

const deafText = "its launcher does not let it go on"

// Given a guest that is paused at the source after its migration, and a launcher that was asked to
// let it go on, and does not. Then the migration ends where the target certainly has no guest. Where
// it may have one, that decides, as with each other guest.
func TestASourceWhoseLauncherDoesNotLetItsGuestGoOn(t *testing.T) {
	const absent, arrived, stays = kubevirt.TargetAbsent, kubevirt.TargetArrived, kubevirt.SourceRunning
	for _, c := range []struct {
		name           string
		facts          SourceFacts
		reported       string // by this side, before
		action         SourceAction
		reason, failed string
	}{
		{"the target has none", SourceFacts{Target: absent}, "", SourceReportRunning, "NotResumed", "x; " + deafText},
		{"that was reported", SourceFacts{Target: absent}, stays, SourceNothing, "ReportedRunning", "the guest stayed here"},
		{"it was reported, and the target's copy is not removed yet", SourceFacts{Target: arrived}, stays, SourceNothing, "ReportedRunning", "the guest stayed here"},
		{"it was reported, and the job runs still", SourceFacts{Target: absent, JobRuns: true}, stays, SourceFollow, "Moving", "the guest's memory is sent"},
		{"the target has it", SourceFacts{Target: arrived}, "", SourceEnd, "ArrivedThere", "the guest is complete at the target: it ends here"},
		{"it runs at the target", SourceFacts{Target: kubevirt.TargetRunning}, "", SourceEnd, "ArrivedThere", "the guest is complete at the target: it ends here"},
		{"the target has said nothing", SourceFacts{}, "", SourceQuery, "Undecided", "the guest stays paused until the target's agent says whether it arrived"},
		{"the job runs", SourceFacts{Target: absent, JobRuns: true}, "", SourceFollow, "Moving", "the guest's memory is sent"},
		{"its user has paused it", SourceFacts{Target: absent, ByUser: true}, "", SourceReportRunning, "StaysPaused", "x"},
		{"it runs after all", SourceFacts{Target: absent, Guest: GuestRuns}, "", SourceReportRunning, "RunsOn", "x"},
		{"it runs after all, and the migration is gone", SourceFacts{Target: absent, Guest: GuestRuns, Gone: true}, "", SourceNothing, "Ended", "the migration is over"},
		{"its QEMU has ended", SourceFacts{Target: absent, Guest: GuestGone}, "", SourceReportGone, "QEMUGone", "QEMU has ended here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.facts
			f.Migration, f.Failed, f.NotResumed = given(t, kubevirt.MigrationRunning).Migration, "x", true
			f.Migration.Status.MigrationState.SourceState = c.reported
			if f.Guest == "" {
				f.Guest = GuestPaused
			}
			if got, want := NextOfSource(f), (SourceStep{c.action, c.reason, c.failed}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// Given the same guest, and a launcher that was not asked yet, or not for long. Then it is asked, also
// by an agent that has started after the report.
func TestASourceAsksItsLauncherToLetTheGuestGoOn(t *testing.T) {
	for _, reported := range []string{"", kubevirt.SourceRunning} {
		m := given(t, kubevirt.MigrationRunning).Migration
		m.Status.MigrationState.SourceState = reported
		f := SourceFacts{Migration: m, Guest: GuestPaused, Target: kubevirt.TargetAbsent}
		if got := NextOfSource(f); got.Action != SourceResume {
			t.Errorf("reported %q: %+v", reported, got)
		}
	}
}

// Given a guest that has arrived, and a launcher that was asked to let it go on, and does not. Then it
// has moved where the source certainly has it no more. Where the source may have it, or this node has
// given it up, that decides, as with each other guest.
func TestATargetWhoseLauncherDoesNotLetItsGuestGoOn(t *testing.T) {
	const gone, absent, running = kubevirt.SourceGone, kubevirt.TargetAbsent, kubevirt.TargetRunning
	const alone = "the guest is here alone, and " + deafText
	for _, c := range []struct {
		name     string
		facts    TargetFacts
		reported string // by this side, before
		action   TargetAction
		reason   string
		message  string // "" = any
	}{
		{"it is here alone", TargetFacts{Source: gone}, "", TargetReportRunning, "ArrivedNotResumed", alone},
		{"its arrival was reported", TargetFacts{Source: gone}, kubevirt.TargetArrived, TargetReportRunning, "ArrivedNotResumed", alone},
		{"all was reported", TargetFacts{Source: gone}, running, TargetNothing, "MovedNotResumed", alone},
		{"the source has said nothing", TargetFacts{}, "", TargetHold, "Undecided", ""},
		{"it ran on at the source", TargetFacts{Source: kubevirt.SourceRunning}, "", TargetRemove, "RanOnAtSource", ""},
		{"it was reported as absent", TargetFacts{Source: gone}, absent, TargetRemove, "ReportedAbsent", ""},
		{"the source was fenced just now", TargetFacts{Source: gone, FencedFor: 1}, "", TargetHold, "FencedSource", ""},
		{"the source was fenced", TargetFacts{Source: gone, FencedFor: FenceDelay}, "", TargetReportRunning, "ArrivedNotResumed", alone},
		{"its user has paused it", TargetFacts{Source: gone, Paused: true}, "", TargetReportRunning, "ArrivedPaused", ""},
		{"it runs after all", TargetFacts{Source: gone, Copy: CopyRunning}, "", TargetReportRunning, "Arrived", ""},
		{"its launcher says nothing", TargetFacts{Source: gone, Copy: CopyUnknown}, "", TargetWait, "Unknown", ""},
		{"it is incomplete", TargetFacts{Source: gone, Copy: CopyIncoming}, "", TargetRemove, "Stale", ""},
		{"there is none", TargetFacts{Source: gone, Copy: CopyNone}, "", TargetReportAbsent, "Over", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.facts
			f.Migration, f.NotResumed = given(t, kubevirt.MigrationRunning).Migration, true
			f.Migration.Status.MigrationState.TargetState = c.reported
			if f.Copy == "" {
				f.Copy = CopyComplete
			}
			got := NextOfTarget(f)
			if got.Action != c.action || got.Reason != c.reason || c.message != "" && got.Message != c.message {
				t.Errorf("%+v, want %s by %s: %q", got, c.action, c.reason, c.message)
			}
		})
	}
}

// Given the same guest, and a launcher that was not asked yet, or not for long. Then it is asked, also
// by an agent that has started after the report, and after the end of the migration.
func TestATargetAsksItsLauncherToLetTheGuestGoOn(t *testing.T) {
	for _, phase := range []kubevirt.MigrationPhase{kubevirt.MigrationRunning, kubevirt.MigrationSucceeded} {
		for _, reported := range []string{"", kubevirt.TargetArrived, kubevirt.TargetRunning} {
			m := given(t, phase).Migration
			m.Status.MigrationState.TargetState = reported
			m.Status.MigrationState.StartTimestamp = &metav1.Time{Time: noon}
			f := TargetFacts{Migration: m, Copy: CopyComplete, Source: kubevirt.SourceGone}
			if got := NextOfTarget(f); got.Action != TargetResume {
				t.Errorf("%s, reported %q: %+v", phase, reported, got)
			}
		}
	}
}

// Given a migration that ends without a reason of anybody's. Then the reason names neither libvirt nor
// a launcher: either may have sent the guest.
func TestAReasonIsGivenWhereNobodyHasOne(t *testing.T) {
	f := SourceFacts{Migration: given(t, kubevirt.MigrationRunning).Migration, Guest: GuestRuns}
	if got := NextOfSource(f); got.Action != SourceReportRunning || got.Message != "the migration has ended, and the guest runs on" {
		t.Errorf("%+v", got)
	}
}
