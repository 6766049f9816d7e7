package migration

import (
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// A guest is sent only if both nodes send guests in the same way.
func TestAGuestIsSentOnlyAsTheTargetExpectsIt(t *testing.T) {
	for _, c := range []struct {
		native  bool
		target  kubevirt.MigrationTransport
		refused string
		action  SourceAction
		message string
	}{
		{false, "", "", SourceBegin, ""},
		{true, kubevirt.TransportNative, "", SourceBegin, ""},
		{true, "", "", SourceReportRunning, "the agent of node b does not have"},
		{false, kubevirt.TransportNative, "", SourceReportRunning, "the agent of this node does not have"},
		{false, "Pigeon", "", SourceBegin, ""}, // no transport of ours
		{true, kubevirt.TransportNative, "its address is none", SourceReportRunning, "its address is none"},
	} {
		m := given(t, kubevirt.MigrationTargetReady).Migration
		m.Status.MigrationState.Transport = c.target
		f := SourceFacts{Migration: m, Guest: GuestRuns, Native: c.native, Refused: c.refused}
		if step := NextOfSource(f); step.Action != c.action || !strings.Contains(step.Message, c.message) {
			t.Errorf("native %v, target %q: %+v, want %s %q", c.native, c.target, step, c.action, c.message)
		}
		// A migration that has begun continues.
		m.Status.Phase = kubevirt.MigrationRunning
		f.JobRuns = true
		if step := NextOfSource(f); step.Action != SourceFollow {
			t.Errorf("native %v, target %q, under way: %+v", c.native, c.target, step)
		}
	}
}

// No paused guest is sent to a target that would resume it. An agent that does not state
// this was not heard yet.
func TestAPausedGuestIsSentOnlyToWhereItStaysPaused(t *testing.T) {
	for _, c := range []struct {
		facts   SourceFacts
		action  SourceAction
		message string
	}{
		{SourceFacts{ByUser: true, KeepsPaused: true}, SourceBegin, ""},
		{SourceFacts{ByUser: true}, SourceWait, "not known yet"},
		{SourceFacts{ByUser: true, TooOld: true}, SourceReportRunning, "the agent of node b is too old"},
		{SourceFacts{Stopped: true, KeepsPaused: true}, SourceReportRunning, "not by its user"},
		{SourceFacts{TooOld: true}, SourceBegin, ""},
		{SourceFacts{ByUser: true, KeepsPaused: true, ArrivedSo: true}, SourceReportRunning, "it can be moved while it runs"},
		{SourceFacts{ArrivedSo: true}, SourceBegin, ""},
	} {
		f := c.facts
		f.Migration, f.Guest = given(t, kubevirt.MigrationTargetReady).Migration, GuestRuns
		if step := NextOfSource(f); step.Action != c.action || !strings.Contains(step.Message, c.message) {
			t.Errorf("%+v: %+v, want %s %q", c.facts, step, c.action, c.message)
		}
	}
}

// While libvirt may send directly, the end of a connection between the agents does not mean
// that nothing arrives.
func TestANativeMigrationsTargetReportsAbsentAfterTheSource(t *testing.T) {
	for _, c := range []struct {
		transport     kubevirt.MigrationTransport
		closed, asked bool
		source        string
		want          TargetAction
	}{
		{"", true, false, "", TargetReportAbsent},
		{"", false, true, "", TargetReportAbsent}, // an agent that was killed before its libvirt began
		{"", false, false, "", TargetWait},
		{kubevirt.TransportNative, true, false, "", TargetWait},
		{kubevirt.TransportNative, true, true, "", TargetReportAbsent},
		{kubevirt.TransportNative, false, false, kubevirt.SourceRunning, TargetReportAbsent},
		{kubevirt.TransportNative, false, false, kubevirt.SourceGone, TargetReportAbsent},
	} {
		m := given(t, kubevirt.MigrationRunning).Migration
		m.Status.MigrationState.Transport = c.transport
		f := TargetFacts{Migration: m, Copy: CopyNone, Closed: c.closed, Queried: c.asked, Source: c.source}
		if step := NextOfTarget(f); step.Action != c.want {
			t.Errorf("%+v: %s, want %s", c, step.Action, c.want)
		}
		f.JobRuns = true
		if step := NextOfTarget(f); step.Action != TargetWait {
			t.Errorf("%+v while libvirt works: %s", c, step.Action)
		}
	}
}
