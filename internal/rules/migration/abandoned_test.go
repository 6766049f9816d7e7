package migration_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// A target pod is deleted only where the guest certainly is not in it. Otherwise the sweep
// would shut down a VM.
func TestATargetPodOfNobodyIsAbandoned(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(*migration.AbandonedFacts)
		want   string
	}{
		"the VM is on its node":   {func(*migration.AbandonedFacts) {}, "the VM is on node a"},
		"no VMI":                  {func(f *migration.AbandonedFacts) { f.VMI = nil }, "do not exist"},
		"VMI made anew elsewhere": {func(f *migration.AbandonedFacts) { f.VMI.UID, f.LauncherRuns = "other", false }, "do not exist"},
		"placed nowhere":          {func(f *migration.AbandonedFacts) { f.Pod.Node = "" }, "the VM is on node a"},
		"VMI made anew, here":     {func(f *migration.AbandonedFacts) { f.VMI.UID, f.VMI.Status.NodeName = "other", "b" }, ""},
		"the VM is in it":         {func(f *migration.AbandonedFacts) { f.VMI.Status.NodeName = "b" }, ""},
		"the VM may be in it":     {func(f *migration.AbandonedFacts) { f.LauncherRuns = false }, ""},
		"the VM has no node":      {func(f *migration.AbandonedFacts) { f.VMI.Status.NodeName = "" }, ""},
		"a migration needs it":    {func(f *migration.AbandonedFacts) { f.MigrationExists = true }, ""},
		"handed to the agents":    {func(f *migration.AbandonedFacts) { f.HandedOver = true }, ""},
		"just made":               {func(f *migration.AbandonedFacts) { f.Pod.Created = now.Add(-4 * time.Minute) }, ""},
		"being deleted":           {func(f *migration.AbandonedFacts) { f.Pod.Deleting = true }, ""},
		"ended":                   {func(f *migration.AbandonedFacts) { f.Pod.Ended = true }, ""},
		"not vmgrace's":           {func(f *migration.AbandonedFacts) { f.Pod.Name = "virt-launcher-vm-x7k2p" }, ""},
	} {
		v := &kubevirt.VirtualMachineInstance{}
		v.UID, v.Status.NodeName = "u", "a"
		f := migration.AbandonedFacts{
			VMIName: "vm", VMIUID: "u", MigrationUID: "m", VMI: v, LauncherRuns: true, Now: now,
			Pod: migration.Pod{Name: migration.TargetPodName("vm", "m"), Node: "b", Created: now.Add(-6 * time.Minute)},
		}
		c.change(&f)
		if remove, why := migration.Abandoned(f); remove != (c.want != "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: %v, %q, want %q", name, remove, why, c.want)
		}
	}
}

// A migration is forgotten where its controller could end it. One that waits for an agent is
// not: only that agent's report, or the node's fencing, ends it.
func TestAMigrationThatWaitsForAnAgentIsNotForgotten(t *testing.T) {
	const failed, running, ready = kubevirt.MigrationFailed, kubevirt.MigrationRunning, kubevirt.MigrationTargetReady
	for name, c := range map[string]struct {
		phase               kubevirt.MigrationPhase
		begun, free         bool
		state               kubevirt.MigrationState
		vmiGone, targetGone bool
		want                bool
	}{
		"its VM exists":               {phase: ready},
		"pending, no VMI":             {vmiGone: true, want: true},
		"before it runs, no VMI":      {phase: ready, vmiGone: true, want: true},
		"runs, no VMI":                {phase: running, begun: true, vmiGone: true, want: true},
		"runs, no VMI, aborted":       {phase: running, begun: true, vmiGone: true, state: kubevirt.MigrationState{AbortRequested: true}},
		"succeeded":                   {phase: kubevirt.MigrationSucceeded, begun: true, want: true},
		"succeeded and let go":        {phase: kubevirt.MigrationSucceeded, begun: true, free: true},
		"failed before it ran":        {phase: failed, want: true},
		"failed, a copy may be there": {phase: failed, begun: true, vmiGone: true},
		"failed, no copy is there":    {phase: failed, begun: true, state: kubevirt.MigrationState{TargetState: kubevirt.TargetAbsent}, want: true},
		"failed, target's node gone":  {phase: failed, begun: true, targetGone: true, want: true},
		"failed and let go":           {phase: failed, free: true},
	} {
		m := &kubevirt.VirtualMachineInstanceMigration{}
		m.Status.Phase, m.Status.MigrationState = c.phase, &c.state
		if c.begun {
			c.state.StartTimestamp = new(metav1.Now())
		}
		if !c.free {
			m.Finalizers = []string{"other", migration.Finalizer}
		}
		if yes, _ := migration.Forgotten(m, c.vmiGone, c.targetGone); yes != c.want {
			t.Errorf("%s: %v", name, yes)
		}
	}
}
