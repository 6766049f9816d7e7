package evacuation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func at(seconds int) metav1.Time { return metav1.Unix(1_000_000+int64(seconds), 0) }

// evacuation returns an evacuation of node-a that was created at a second, and ended
// then if it is final.
func evacuation(name string, phase kubevirt.MigrationPhase, second int) kubevirt.VirtualMachineInstanceMigration {
	m := migration(name, phase)
	m.Annotations = map[string]string{kubevirt.EvacuationMigrationAnnotation: "node-a"}
	m.CreationTimestamp = at(second)
	m.Status.PhaseTransitionTimestamps = []kubevirt.MigrationPhaseTransition{
		{Phase: kubevirt.MigrationPending, Timestamp: at(second - 1)}, {Phase: phase, Timestamp: at(second)}}
	return m
}

func evacuee(change ...func(*Evacuee)) Evacuee {
	e := Evacuee{
		VMI: vmi(migratable, marked), Strategy: kubevirt.StrategyLiveMigrate,
		NodeReady: true, Launchers: 1, Now: at(0).Time,
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		given   func(*Evacuee)
		action  Action
		reason  string
		message string
	}{
		"marked":                      {func(*Evacuee) {}, Migrate, "Evacuate", ""},
		"not marked":                  {func(e *Evacuee) { e.VMI.Status.EvacuationNodeName = "" }, Nothing, "NotRequested", ""},
		"marked for a former node":    {func(e *Evacuee) { e.VMI.Status.EvacuationNodeName = "node-b" }, Nothing, "NotRequested", ""},
		"drain taint, not marked":     {func(e *Evacuee) { e.VMI.Status.EvacuationNodeName, e.NodeDrained = "", true }, Migrate, "Evacuate", ""},
		"drain taint, None":           {func(e *Evacuee) { e.VMI, e.NodeDrained, e.Strategy = vmi(migratable), true, kubevirt.StrategyNone }, Nothing, "NotRequested", ""},
		"drain taint, External":       {func(e *Evacuee) { e.VMI, e.NodeDrained, e.Strategy = vmi(), true, kubevirt.StrategyExternal }, Nothing, "NotRequested", ""},
		"drain taint, not migratable": {func(e *Evacuee) { e.VMI, e.NodeDrained = vmi(), true }, Blocked, "NotMigratable", "no condition LiveMigratable"},
		"drain taint, IfPossible isn't": {func(e *Evacuee) {
			e.VMI, e.NodeDrained, e.Strategy = vmi(), true, kubevirt.StrategyLiveMigrateIfPossible
		}, Nothing, "NotRequested", ""},
		"ended":                {func(e *Evacuee) { withPhase(kubevirt.VMISucceeded)(e.VMI) }, Nothing, "Ended", ""},
		"being deleted":        {func(e *Evacuee) { deleting(e.VMI) }, Nothing, "Deleting", ""},
		"External":             {func(e *Evacuee) { e.Strategy = kubevirt.StrategyExternal }, Wait, "External", "status.evacuationNodeName"},
		"None, marked by hand": {func(e *Evacuee) { e.Strategy = kubevirt.StrategyNone }, Blocked, "NotMigrated", "evictionStrategy is None"},
		"IfPossible":           {func(e *Evacuee) { e.Strategy = kubevirt.StrategyLiveMigrateIfPossible }, Migrate, "Evacuate", ""},
		"not migratable": {func(e *Evacuee) {
			e.VMI.Status.Conditions = []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: "False", Message: "a host device"}}
		}, Blocked, "NotMigratable", "a host device"},
		"node not Ready":           {func(e *Evacuee) { e.NodeReady = false }, Blocked, "NodeNotReady", "node-a is not Ready"},
		"no launcher":              {func(e *Evacuee) { e.Launchers = 0 }, Wait, "NoLauncher", ""},
		"a target pod is left":     {func(e *Evacuee) { e.Launchers = 2 }, Wait, "SeveralLaunchers", ""},
		"a user's migration waits": {func(e *Evacuee) { e.Migrations = append(e.Migrations, migration("u", "")) }, Wait, "Migrating", "migration u"},
		"no node takes it": {func(e *Evacuee) {
			e.Migrations, e.Launchers, e.Unschedulable = append(e.Migrations, migration("m", "Scheduling")), 2, "0/2 nodes are available"
		}, Blocked, "NoRoom", "0/2 nodes are available"},
		"its pod is left":           {func(e *Evacuee) { e.Launchers, e.Unschedulable = 2, "0/2 nodes are available" }, Wait, "SeveralLaunchers", ""},
		"migrating, not Ready node": {func(e *Evacuee) { e.Migrations, e.NodeReady = append(e.Migrations, migration("m", "Running")), false }, Wait, "Migrating", ""},
		"failed long ago":           {func(e *Evacuee) { e.Migrations = append(e.Migrations, evacuation("m", "Failed", -20)) }, Migrate, "Evacuate", ""},
		"failed just now":           {func(e *Evacuee) { e.Migrations = append(e.Migrations, evacuation("m", "Failed", -19)) }, Wait, "Backoff", "1 in a row"},
		"failed for a reason": {func(e *Evacuee) {
			m := evacuation("m", "Failed", -1)
			m.Status.MigrationState = &kubevirt.MigrationState{FailureReason: "the cluster has no other node"}
			e.Migrations = append(e.Migrations, m)
		}, Wait, "Backoff", "the cluster has no other node"},
		"as many have failed as may": {func(e *Evacuee) {
			e.Migrations, e.MaxAttempts = append(e.Migrations, evacuation("m", "Failed", -400), evacuation("n", "Failed", -390)), 2
		}, Blocked, "Stuck", "2 migrations in a row have failed"},
		"one more may fail": {func(e *Evacuee) {
			e.Migrations, e.MaxAttempts = append(e.Migrations, evacuation("m", "Failed", -400)), 2
		}, Migrate, "Evacuate", ""},
		"stuck, and said to be shut down": {func(e *Evacuee) {
			e.Migrations, e.MaxAttempts, e.ShutdownAfter = append(e.Migrations, evacuation("m", "Failed", -400)), 1, true
		}, Shutdown, "Stuck", "is shut down (afterAttempts)"},
		"stuck, and being shut down": {func(e *Evacuee) {
			e.Migrations, e.MaxAttempts, e.ShutdownAfter, e.LauncherTerminating = append(e.Migrations, evacuation("m", "Failed", -400)), 1, true, true
		}, Wait, "ShuttingDown", ""},
		"stuck, and not live-migratable since": {func(e *Evacuee) {
			e.VMI.Status.Conditions = nil
			e.Migrations, e.MaxAttempts, e.ShutdownAfter = append(e.Migrations, evacuation("m", "Failed", -400)), 1, true
		}, Blocked, "NotMigratable", ""},
		"failures of a former VMI": {func(e *Evacuee) {
			e.VMI.CreationTimestamp = at(-1)
			e.Migrations = append(e.Migrations, evacuation("m", "Failed", -2))
		}, Migrate, "Evacuate", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Next(evacuee(c.given))
			if got.Action != c.action || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
				t.Errorf("%+v; want %s, %s, %q", got, c.action, c.reason, c.message)
			}
			if got.Action != Nothing && got.Message == "" {
				t.Errorf("%s says nothing", got.Reason)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	var failed []kubevirt.VirtualMachineInstanceMigration
	for n, seconds := range []int{20, 40, 80, 160, 320, 320, 320} {
		want := time.Duration(seconds) * time.Second
		failed = append(failed, evacuation(fmt.Sprint("m", n), kubevirt.MigrationFailed, n-10))
		step := Next(evacuee(func(e *Evacuee) { e.Migrations, e.Now = failed, at(n-10).Time }))
		if step.Reason != "Backoff" || step.Again != want {
			t.Errorf("after %d failures: %s, again in %v; want %v", n+1, step.Reason, step.Again, want)
		}
	}
	t.Run("reset by a success", func(t *testing.T) {
		all := append(failed, evacuation("good", kubevirt.MigrationSucceeded, -3), evacuation("bad", kubevirt.MigrationFailed, 0))
		if step := Next(evacuee(func(e *Evacuee) { e.Migrations = all })); step.Again != 20*time.Second {
			t.Errorf("again in %v, want 20s", step.Again)
		}
	})
	t.Run("a user's failure is none", func(t *testing.T) {
		m := evacuation("user", kubevirt.MigrationFailed, 0)
		m.Annotations = nil
		if step := Next(evacuee(func(e *Evacuee) { e.Migrations = append(e.Migrations, m) })); step.Action != Migrate {
			t.Errorf("%+v, want Migrate", step)
		}
	})
	t.Run("a clock that was set back", func(t *testing.T) {
		step := Next(evacuee(func(e *Evacuee) { e.Migrations = append(e.Migrations, evacuation("m", "Failed", 9999)) }))
		if step.Again != 20*time.Second {
			t.Errorf("again in %v, want at most 20s", step.Again)
		}
	})
}

func TestMigrationName(t *testing.T) {
	first := evacuee().MigrationName()
	if !strings.HasPrefix(first, "kubevirt-evacuation-") {
		t.Errorf("name %q", first)
	}
	if again := evacuee().MigrationName(); again != first {
		t.Errorf("the same state gives %q and %q: two leaders would make two migrations", first, again)
	}
	after := evacuee(func(e *Evacuee) { e.Migrations = append(e.Migrations, evacuation(first, "Failed", 0)) })
	if after.MigrationName() == first {
		t.Error("the next migration has the name of the one that failed")
	}
	other := evacuee(func(e *Evacuee) { e.VMI.UID = "another" })
	if other.MigrationName() == first {
		t.Error("the next VMI of the name has the migration of the last")
	}
}

func TestOutdated(t *testing.T) {
	var all []kubevirt.VirtualMachineInstanceMigration
	for n := range 7 {
		all = append(all, evacuation(fmt.Sprint("m", n), kubevirt.MigrationFailed, -n))
	}
	all = append(all, evacuation("runs", kubevirt.MigrationRunning, -99))
	got := Evacuee{Migrations: all}.Outdated()
	if len(got) != 2 || got[0].Name != "m6" || got[1].Name != "m5" {
		t.Errorf("%d are dropped, the first %v; want the two oldest finished", len(got), got)
	}
	if got := (Evacuee{Migrations: all, MaxAttempts: 6}).Outdated(); len(got) != 1 {
		t.Errorf("%d are dropped, and 6 failures have to be counted", len(got))
	}
	if got := (Evacuee{Migrations: all[:5]}).Outdated(); got != nil {
		t.Errorf("of five finished %d are dropped", len(got))
	}
}
