package evacuation

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Evacuee is what is known of a VM that may have to leave its node.
type Evacuee struct {
	VMI      *kubevirt.VirtualMachineInstance
	Strategy kubevirt.EvictionStrategy // StrategyOf the VMI
	// NodeReady and NodeDrained are of the VM's node: condition Ready, and the
	// taint that asks for it to be emptied.
	NodeReady   bool
	NodeDrained bool
	// Launchers counts the VM's launcher pods that have not ended. One that is
	// being deleted and still runs counts.
	Launchers int
	// LauncherTerminating: one of them is being deleted, so that the VM ends
	// unless it is moved.
	LauncherTerminating bool
	// Unschedulable is what the scheduler says of a launcher pod of the VM for which it
	// finds no node, "" where there is none.
	Unschedulable string
	// Migrations of the VMI, in any phase.
	Migrations []kubevirt.VirtualMachineInstanceMigration
	Now        time.Time
}

// Action is what is to be done next.
type Action string

// Actions.
const (
	Nothing Action = "Nothing" // the VM may stay, or is about to be gone
	Migrate Action = "Migrate" // make a migration
	Wait    Action = "Wait"    // it is under way, or somebody else's
	Blocked Action = "Blocked" // it is to leave and cannot: that is to be said
)

// Step is the decision for one VM.
type Step struct {
	Action  Action
	Reason  string
	Message string
	// Again is when to look again though nothing happened; 0 = no need to.
	Again time.Duration
}

// evacuationRules are read from top to bottom: the first that holds decides.
var evacuationRules = []struct {
	reason  string
	holds   func(Evacuee) bool
	action  Action
	message func(Evacuee) string
}{
	{"NotRequested", func(e Evacuee) bool { return !e.Requested() }, Nothing, nil},
	{"Ended", func(e Evacuee) bool { return e.VMI.Final() }, Nothing, nil},
	{"Deleting", func(e Evacuee) bool { return e.VMI.DeletionTimestamp != nil }, Nothing, nil},
	{"External", func(e Evacuee) bool { return e.Strategy == kubevirt.StrategyExternal }, Wait,
		says("evictionStrategy is External: whoever watches status.evacuationNodeName has to move the VM")},
	{"NotMigrated", func(e Evacuee) bool { return !migrates(e.Strategy) }, Blocked, func(e Evacuee) string {
		return fmt.Sprintf("the VM is to leave its node, and its evictionStrategy is %s: it is not moved", e.Strategy)
	}},
	{"NoRoom", func(e Evacuee) bool { return e.unfinished() != nil && e.Unschedulable != "" }, Blocked, func(e Evacuee) string {
		return fmt.Sprintf("migration %s finds no node for the VM: %s", e.unfinished().Name, cut(e.Unschedulable, longMessage))
	}},
	{"Migrating", func(e Evacuee) bool { return e.unfinished() != nil }, Wait, func(e Evacuee) string {
		return fmt.Sprintf("migration %s is to move the VM", e.unfinished().Name)
	}},
	{"NotMigratable", func(e Evacuee) bool { return !e.VMI.Migratable() }, Blocked, whyNotMigratable},
	{"NodeNotReady", func(e Evacuee) bool { return !e.NodeReady }, Blocked, func(e Evacuee) string {
		return fmt.Sprintf("node %s is not Ready: the VM cannot be moved away from it", e.VMI.Node())
	}},
	{"NoLauncher", func(e Evacuee) bool { return e.Launchers == 0 }, Wait,
		says("the VM has no launcher pod that runs")},
	{"SeveralLaunchers", func(e Evacuee) bool { return e.Launchers > 1 }, Wait,
		says("the VM has more than one launcher pod: the next migration begins when one is left")},
	{"Backoff", func(e Evacuee) bool { return e.backoff() > 0 }, Wait, func(e Evacuee) string {
		failed, last := e.failures()
		return fmt.Sprintf("the last migration failed, %d in a row: the next one begins %v after it%s", failed, backoffAfter(failed), reasonOf(last))
	}},
	{"Evacuate", func(Evacuee) bool { return true }, Migrate, says("the VM is to leave its node")},
}

// Next decides what is to be done for one VM.
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

// Requested reports whether the VM is to leave its node: it is marked, or its
// node is to be emptied and an eviction would mark it.
func (e Evacuee) Requested() bool {
	if e.VMI.Marked() {
		return true
	}
	return e.NodeDrained && e.VMI.Node() != "" && (e.Strategy == kubevirt.StrategyLiveMigrate ||
		e.Strategy == kubevirt.StrategyLiveMigrateIfPossible && e.VMI.Migratable())
}

// Finished migrations of a VM: so many are kept.
const keptMigrations = 5

// Outdated returns the finished migrations that are not kept, the oldest first.
func Outdated(all []kubevirt.VirtualMachineInstanceMigration) []kubevirt.VirtualMachineInstanceMigration {
	var done []kubevirt.VirtualMachineInstanceMigration
	for i := range all {
		if all[i].Final() {
			done = append(done, all[i])
		}
	}
	sortByAge(done)
	if len(done) <= keptMigrations {
		return nil
	}
	return done[:len(done)-keptMigrations]
}

// MigrationPrefix begins the name of each migration that empties a node.
const MigrationPrefix = "kubevirt-evacuation-"

// MigrationName is the name of the VM's next evacuation. It follows from what
// came before, so that two controllers that know the same, or one that knows
// less than the other, cannot make two.
func (e Evacuee) MigrationName() string {
	last := ""
	if own := e.evacuations(); len(own) > 0 {
		last = string(own[len(own)-1].UID)
	}
	sum := sha256.Sum256([]byte(string(e.VMI.UID) + "/" + last))
	return MigrationPrefix + hex.EncodeToString(sum[:5])
}

// Backoff after failures: base × 2ⁿ, at most the last.
const (
	backoffBase = 20 * time.Second
	backoffMost = 320 * time.Second
)

func backoffAfter(failures int) time.Duration {
	wait := backoffBase
	for range failures - 1 {
		if wait *= 2; wait >= backoffMost {
			return backoffMost
		}
	}
	return wait
}

// backoff is what is left of the wait after the last failure.
func (e Evacuee) backoff() time.Duration {
	failed, last := e.failures()
	if failed == 0 {
		return 0
	}
	// A clock that was set back must not make the wait longer.
	return min(ended(last).Add(backoffAfter(failed)).Sub(e.Now), backoffAfter(failed))
}

// failures counts the VM's evacuations that failed since a migration last
// succeeded, and returns the last of them.
func (e Evacuee) failures() (failed int, last *kubevirt.VirtualMachineInstanceMigration) {
	for _, m := range e.own() {
		switch {
		case m.Status.Phase == kubevirt.MigrationSucceeded:
			failed = 0
		case m.Status.Phase == kubevirt.MigrationFailed && Evacuates(&m):
			failed, last = failed+1, &m
		}
	}
	return failed, last
}

// reasonOf says why a migration failed, as the end of a sentence.
func reasonOf(m *kubevirt.VirtualMachineInstanceMigration) string {
	if s := m.Status.MigrationState; s != nil && s.FailureReason != "" {
		return "; " + cut(s.FailureReason, longMessage)
	}
	return ""
}

func (e Evacuee) unfinished() *kubevirt.VirtualMachineInstanceMigration {
	for i := range e.Migrations {
		if !e.Migrations[i].Final() {
			return &e.Migrations[i]
		}
	}
	return nil
}

// own are the migrations made since the VMI exists, the oldest first: earlier
// ones are of a former VMI of its name.
func (e Evacuee) own() []kubevirt.VirtualMachineInstanceMigration {
	var own []kubevirt.VirtualMachineInstanceMigration
	for i := range e.Migrations {
		if !e.Migrations[i].CreationTimestamp.Before(&e.VMI.CreationTimestamp) {
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

// ended is when a finished migration ended: its creation where it has no time of its
// last phase.
func ended(m *kubevirt.VirtualMachineInstanceMigration) time.Time {
	if t := m.Reached(m.Status.Phase); !t.IsZero() {
		return t
	}
	return m.CreationTimestamp.Time
}

// Evacuates reports whether a migration was made to empty a node.
func Evacuates(m *kubevirt.VirtualMachineInstanceMigration) bool {
	_, ok := m.Annotations[kubevirt.EvacuationMigrationAnnotation]
	return ok
}

// PhaseOf is a migration's phase: one that nobody has looked at is Pending.
func PhaseOf(m *kubevirt.VirtualMachineInstanceMigration) kubevirt.MigrationPhase {
	return cmp.Or(m.Status.Phase, kubevirt.MigrationPending)
}

// waiting reports whether a migration has not begun.
func waiting(m *kubevirt.VirtualMachineInstanceMigration) bool {
	return PhaseOf(m) == kubevirt.MigrationPending
}

func whyNotMigratable(e Evacuee) string {
	const text = "the VM is to leave its node and is not live-migratable"
	c := e.VMI.Condition(kubevirt.LiveMigratable)
	switch {
	case c == nil:
		return text + ": no condition LiveMigratable"
	case c.Message != "":
		return text + ": " + bounded(c.Message)
	case c.Reason != "":
		return text + ": " + bounded(c.Reason)
	}
	return text
}

func says(text string) func(Evacuee) string { return func(Evacuee) string { return text } }
