package migration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func TestLeftovers(t *testing.T) {
	for name, c := range map[string]struct {
		but   func(*LeftoverFacts, *Pod)
		drops bool
		moved bool
		again time.Duration
	}{
		"moved":                        {func(*LeftoverFacts, *Pod) {}, true, true, 0},
		"it may end by itself":         {func(f *LeftoverFacts, _ *Pod) { f.Now = noon.Add(4 * time.Second) }, false, false, 6 * time.Second},
		"a clock that was set back":    {func(f *LeftoverFacts, _ *Pod) { f.Now = noon.Add(-time.Hour) }, false, false, 10 * time.Second},
		"it has ended":                 {func(_ *LeftoverFacts, p *Pod) { p.Ended = true }, false, false, 0},
		"it is being deleted":          {func(_ *LeftoverFacts, p *Pod) { p.Deleting = true }, false, false, 0},
		"another pod":                  {func(_ *LeftoverFacts, p *Pod) { p.UID = "other" }, false, false, 0},
		"the VM is on its node":        {func(_ *LeftoverFacts, p *Pod) { p.Node = "b" }, false, false, 0},
		"the VM's node is not known":   {func(f *LeftoverFacts, _ *Pod) { f.VMI.Status.NodeName = ""; f.VMI.Labels = nil }, false, false, 0},
		"the migration has failed":     {func(f *LeftoverFacts, _ *Pod) { f.Migrations[0].Status.Phase = kubevirt.MigrationFailed }, false, false, 0},
		"the migration goes on":        {func(f *LeftoverFacts, _ *Pod) { f.Migrations[0].Status.Phase = kubevirt.MigrationRunning }, false, false, 0},
		"the source has not said Gone": {func(f *LeftoverFacts, _ *Pod) { f.Migrations[0].Status.MigrationState.SourceState = "" }, false, false, 0},
		"of a former VMI":              {func(f *LeftoverFacts, _ *Pod) { f.VMI.UID = "3" }, false, false, 0},
		"the VM has ended":             {func(f *LeftoverFacts, p *Pod) { f.VMI.Status.Phase, p.Node = kubevirt.VMISucceeded, "b" }, true, false, 0},
		"the VM has just ended": {func(f *LeftoverFacts, _ *Pod) {
			f.VMI.Status.Phase, f.FinalSince = kubevirt.VMIFailed, f.Now
		}, false, false, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			w.vmi.Status.NodeName = "b"
			w.m.Status.Phase = kubevirt.MigrationSucceeded
			w.m.Status.MigrationState = &kubevirt.MigrationState{VMIUID: "2", SourcePodUID: "s", SourceState: kubevirt.SourceGone, EndTimestamp: &metav1.Time{Time: noon}}
			f := LeftoverFacts{VMI: w.vmi, Migrations: []kubevirt.VirtualMachineInstanceMigration{*w.m}, FinalSince: noon, Now: noon.Add(10 * time.Second)}
			p := Pod{Name: "src", UID: "s", Node: "a"}
			c.but(&f, &p)
			all, again := Leftovers(f, []Pod{p})
			if (len(all) == 1) != c.drops || again != c.again || c.drops && (all[0].Moved != c.moved || all[0].Why == "") {
				t.Errorf("%+v, again in %v", all, again)
			}
		})
	}
}
