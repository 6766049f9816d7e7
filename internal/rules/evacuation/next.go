package evacuation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

// Evacuee is the state of a VM that may have to be evacuated.
type Evacuee struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// NodeReady and NodeDrained are the condition Ready and the drain taint of the VM's
	// node.
	NodeReady   bool
	NodeDrained bool
	// Launchers is the number of the VM's launcher pods that have not ended, including
	// terminating ones.
	Launchers int
	// LauncherTerminating means that one of them is being deleted: the VM ends unless it
	// is migrated.
	LauncherTerminating bool
	// Held means that the VM's shutdown is held until it is moved.
	Held bool
	// Unschedulable is the scheduler's message about an unschedulable launcher pod of the
	// VM, or "".
	Unschedulable string
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	// MaxAttempts and ShutdownAfter are those of the Settings.
	MaxAttempts   int
	ShutdownAfter bool
	Now           time.Time
}

// Action to take for a VM.
type Action string

// Actions.
const (
	Nothing  Action = "Nothing"  // no evacuation is requested, or the VM ends
	Migrate  Action = "Migrate"  // create a migration
	Wait     Action = "Wait"     // a migration is under way, or others move the VM
	Blocked  Action = "Blocked"  // the VM cannot be evacuated: to be reported
	Shutdown Action = "Shutdown" // delete the launcher pod, so that the VM is shut down
)

// Step is the decision for one VM.
type Step struct {
	Action  Action
	Reason  string
	Message string
	// Again is when to reconcile again without a change, 0 if never.
	Again time.Duration
}

// evacuationRules decides by the first rule that holds.
var evacuationRules = []struct {
	reason  string
	holds   func(Evacuee) bool
	action  Action
	message func(Evacuee) string
}{
	{"NotRequested", func(e Evacuee) bool { return !e.Requested() }, Nothing, nil},
	{"Ended", func(e Evacuee) bool { return e.VMI.Final() }, Nothing, nil},
	{"Deleting", func(e Evacuee) bool { return e.VMI.DeletionTimestamp != nil }, Nothing, nil},
	{reasonExternal, func(e Evacuee) bool { return e.Strategy == kubevirt.StrategyExternal }, Wait, fixed(toBeMovedByOthers)},
	{"NotMigrated", func(e Evacuee) bool { return !migrates(e.Strategy) }, Blocked, func(e Evacuee) string {
		return fmt.Sprintf("the VM is to leave its node, and its evictionStrategy is %s: it is not moved", e.Strategy)
	}},
	{"NoRoom", func(e Evacuee) bool { return e.unfinished() != nil && e.Unschedulable != "" }, Blocked, func(e Evacuee) string {
		return fmt.Sprintf("migration %s finds no node for the VM: %s", e.unfinished().Name, oneline.Cut(e.Unschedulable, longMessage))
	}},
	{reasonMigrating, func(e Evacuee) bool { return e.unfinished() != nil }, Wait, func(e Evacuee) string {
		return fmt.Sprintf("migration %s is to move the VM", e.unfinished().Name)
	}},
	{"NotMigratable", func(e Evacuee) bool { return !e.VMI.Migratable() }, Blocked, whyNotMigratable},
	{"NodeNotReady", func(e Evacuee) bool { return !e.NodeReady }, Blocked, func(e Evacuee) string {
		return fmt.Sprintf("node %s is not Ready: the VM cannot be moved away from it", e.VMI.Node())
	}},
	{"NoLauncher", func(e Evacuee) bool { return e.Launchers == 0 }, Wait,
		fixed("the VM has no launcher pod that runs")},
	{"SeveralLaunchers", func(e Evacuee) bool { return e.Launchers > 1 }, Wait,
		fixed("the VM has more than one launcher pod: the next migration begins when one is left")},
	{"ShuttingDown", func(e Evacuee) bool { return e.stuck() && e.endsWhenStuck() && e.LauncherTerminating }, Wait,
		fixed("the VM is being shut down")},
	{"ShuttingDown", func(e Evacuee) bool { return e.stuck() && e.endsWhenStuck() }, Shutdown, func(e Evacuee) string {
		return e.whyStuck() + ": the VM is shut down (afterAttempts)"
	}},
	{ReasonStuck, Evacuee.stuck, Blocked, func(e Evacuee) string {
		return e.whyStuck() + ": none is made any more; delete the failed migrations of the VM to try again, or shut it down"
	}},
	{"Backoff", func(e Evacuee) bool { return e.backoff() > 0 }, Wait, func(e Evacuee) string {
		failed, last := e.failures()
		return fmt.Sprintf("the last migration failed, %d in a row: the next one begins %v after it%s", failed, backoffAfter(failed), failureSuffix(last))
	}},
	{"Evacuate", func(Evacuee) bool { return true }, Migrate, fixed("the VM is to leave its node")},
}

// Next decides the action for one VM.
func Next(e Evacuee) Step {
	for _, rule := range evacuationRules {
		if !rule.holds(e) {
			continue
		}
		s := Step{Action: rule.action, Reason: rule.reason}
		if rule.message != nil {
			s.Message = rule.message(e)
		}
		if rule.reason == "Backoff" {
			s.Again = e.backoff()
		}
		return s
	}
	return Step{} // not reached: the last rule always holds
}

// Requested reports whether the evacuation of the VM is requested: it is marked, or its
// node has the drain taint and an eviction would mark it.
func (e Evacuee) Requested() bool {
	if e.VMI.Marked() {
		return true
	}
	return e.NodeDrained && e.VMI.Node() != "" && (e.Strategy == kubevirt.StrategyLiveMigrate ||
		e.Strategy == kubevirt.StrategyLiveMigrateIfPossible && e.VMI.Migratable())
}

// MovedByEviction reports whether KubeVirt's answer to an eviction of the VM's launcher is to
// move the VM.
func (e Evacuee) MovedByEviction() bool {
	return migrates(e.Strategy) && e.VMI.Migratable() && e.NodeReady && !e.VMI.Final() && e.VMI.DeletionTimestamp == nil
}

// MigrationPrefix is the prefix of the names of evacuations.
const MigrationPrefix = "kubevirt-evacuation-"

// MigrationName returns the name of the VM's next evacuation. It derives the name from
// the last evacuation, so that two controllers, even with a stale cache, cannot create
// two.
func (e Evacuee) MigrationName() string {
	last := ""
	if own := e.evacuations(); len(own) > 0 {
		last = string(own[len(own)-1].UID)
	}
	sum := sha256.Sum256([]byte(string(e.VMI.UID) + "/" + last))
	return MigrationPrefix + hex.EncodeToString(sum[:5])
}

func (e Evacuee) unfinished() *kubevirt.VirtualMachineInstanceMigration {
	for i := range e.Migrations {
		if !e.Migrations[i].Final() {
			return &e.Migrations[i]
		}
	}
	return nil
}

// own returns the migrations of this VMI, the oldest first, without those of a former one of the same name.
func (e Evacuee) own() []kubevirt.VirtualMachineInstanceMigration {
	var own []kubevirt.VirtualMachineInstanceMigration
	for i := range e.Migrations {
		if e.Migrations[i].Of(e.VMI) {
			own = append(own, e.Migrations[i])
		}
	}
	sortByAge(own)
	return own
}

func (e Evacuee) evacuations() []kubevirt.VirtualMachineInstanceMigration {
	var some []kubevirt.VirtualMachineInstanceMigration
	for _, m := range e.own() {
		if Evacuates(&m) {
			some = append(some, m)
		}
	}
	return some
}

func sortByAge(all []kubevirt.VirtualMachineInstanceMigration) {
	slices.SortFunc(all, func(a, b kubevirt.VirtualMachineInstanceMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// SeemsMoved reports whether the VM's last migration has moved it away from the node that its
// VMI still shows: that may be out of date.
func (e Evacuee) SeemsMoved() bool {
	own := e.own()
	if len(own) == 0 {
		return false
	}
	last := &own[len(own)-1].Status
	return last.Phase == kubevirt.MigrationSucceeded && last.MigrationState != nil && last.MigrationState.SourceNode == e.VMI.Node()
}

// ended returns when a finished migration ended. Without a time of its last phase it is
// when it was created.
func ended(m *kubevirt.VirtualMachineInstanceMigration) time.Time {
	if t := m.Reached(m.Status.Phase); !t.IsZero() {
		return t
	}
	return m.CreationTimestamp.Time
}

// Evacuates reports whether a migration is an evacuation.
func Evacuates(m *kubevirt.VirtualMachineInstanceMigration) bool {
	_, ok := m.Annotations[kubevirt.EvacuationMigrationAnnotation]
	return ok
}

// PhaseOf returns a migration's phase, Pending if it has none yet.
func PhaseOf(m *kubevirt.VirtualMachineInstanceMigration) kubevirt.MigrationPhase {
	return cmp.Or(m.Status.Phase, kubevirt.MigrationPending)
}

// pending reports whether a migration has not started.
func pending(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return PhaseOf(m) == kubevirt.MigrationPending
}

func whyNotMigratable(e Evacuee) string {
	const text = "the VM is to leave its node and is not live-migratable"
	c := e.VMI.Condition(kubevirt.LiveMigratable)
	switch {
	case c == nil:
		return text + ": no condition LiveMigratable"
	case c.Message != "":
		return text + ": " + oneline.Cut(c.Message, shortText)
	case c.Reason != "":
		return text + ": " + oneline.Cut(c.Reason, shortText)
	}
	return text
}

func fixed(text string) func(Evacuee) string { return func(Evacuee) string { return text } }
