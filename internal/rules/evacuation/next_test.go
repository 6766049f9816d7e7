package evacuation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/types"

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

// failing is a VM that was reported as leaving 500 s ago, with these failed migrations of which
// as many may fail, then it is shut down.
func failing(failed ...kubevirt.VirtualMachineInstanceMigration) Evacuee {
	return evacuee(func(e *Evacuee) {
		e.VMI.Status.Conditions = append(e.VMI.Status.Conditions, kubevirt.Condition{Type: kubevirt.EvictionRequested, Status: kubevirt.ConditionTrue, LastTransitionTime: at(-500)})
		e.Migrations, e.MaxAttempts, e.ShutdownAfter = append(e.Migrations, failed...), len(failed), true
	})
}

func TestStuck(t *testing.T) {
	noTurn := evacuation("n", "Failed", -390)
	noTurn.Status.MigrationState = &kubevirt.MigrationState{FailureReason: "target pod p runs, and within 15m0s there was no room: " + kubevirt.FailureNoRoom}
	deleted := evacuation("n", "Failed", -390)
	deleted.DeletionTimestamp = new(at(-1))
	users := migration("n", "Failed")
	for name, c := range map[string]struct {
		second  kubevirt.VirtualMachineInstanceMigration
		change  func(*Evacuee)
		action  Action
		reason  string
		message string
	}{
		"shut down": {evacuation("n", "Failed", -390), nil, Shutdown, "ShuttingDown", "2 migrations in a row have failed: the VM is shut down"},
		"kept":      {evacuation("n", "Failed", -390), func(e *Evacuee) { e.ShutdownAfter = false }, Blocked, "Stuck", "delete the failed migrations"},
		"by the descheduler alone": {evacuation("n", "Failed", -390), func(e *Evacuee) {
			e.VMI.Annotations = map[string]string{kubevirt.EvictionSourceAnnotation: kubevirt.EvictionSourceDescheduler}
		}, Blocked, "Stuck", ""},
		"being shut down":             {evacuation("n", "Failed", -390), func(e *Evacuee) { e.LauncherTerminating = true }, Wait, "ShuttingDown", ""},
		"one more may fail":           {evacuation("n", "Failed", -390), func(e *Evacuee) { e.MaxAttempts = 3 }, Migrate, "Evacuate", ""},
		"a held shutdown has no time": {evacuation("n", "Failed", -390), func(e *Evacuee) { e.LauncherTerminating, e.Held = true, true }, Migrate, "Evacuate", ""},
		"of a former mark":            {evacuation("n", "Failed", -390), func(e *Evacuee) { e.VMI.Status.Conditions[len(e.VMI.Status.Conditions)-1].LastTransitionTime = at(-1) }, Migrate, "Evacuate", ""},
		"not reported yet":            {evacuation("n", "Failed", -390), func(e *Evacuee) { e.VMI.Status.Conditions = e.VMI.Status.Conditions[:1] }, Migrate, "Evacuate", ""},
		"its turn did not come":       {noTurn, nil, Migrate, "Evacuate", ""},
		"deleted by its user":         {deleted, nil, Migrate, "Evacuate", ""},
		"a user's own":                {users, nil, Migrate, "Evacuate", ""},
		"one has succeeded since":     {evacuation("n", "Succeeded", -390), nil, Migrate, "Evacuate", ""},
		"not live-migratable since":   {evacuation("n", "Failed", -390), func(e *Evacuee) { e.VMI.Status.Conditions = e.VMI.Status.Conditions[1:] }, Blocked, "NotMigratable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := failing(evacuation("m", "Failed", -400), c.second)
			if c.change != nil {
				c.change(&e)
			}
			if got := Next(e); got.Action != c.action || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
				t.Errorf("%+v; want %s, %s, %q", got, c.action, c.reason, c.message)
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
	got := Evacuee{VMI: vmi(), Migrations: all}.Outdated()
	if len(got) != 2 || got[0].Name != "m6" || got[1].Name != "m5" {
		t.Errorf("%d are dropped, the first %v; want the two oldest finished", len(got), got)
	}
	// The attempts that count stay, however many finished ones lie between them.
	e := failing(all[:7]...)
	for i := range e.Migrations {
		e.Migrations[i].UID = types.UID(e.Migrations[i].Name)
	}
	if got := e.Outdated(); len(got) > 0 || len(e.attempts()) != 7 {
		t.Errorf("%d of %d attempts are dropped", len(got), len(e.attempts()))
	}
	if e.MaxAttempts = 6; len(e.Outdated()) != 1 {
		t.Errorf("%d are dropped, 6 count", len(e.Outdated()))
	}
	if got := (Evacuee{VMI: vmi(), Migrations: all[:5]}).Outdated(); got != nil {
		t.Errorf("of five finished %d are dropped", len(got))
	}
}
