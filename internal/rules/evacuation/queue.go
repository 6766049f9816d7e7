package evacuation

import (
	"cmp"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Ranks of migrations: a lower rank gets a slot first.
const (
	rankHeld        = iota // a shutdown is held for it; by HeldUntil
	rankStarted            // in phase Scheduling
	rankEvacuation         // evacuations
	rankUser               // created by users
	rankDescheduler        // the descheduler's evacuations
)

// Moving is a migration with what its turn depends on.
type Moving struct {
	Migration *kubevirt.VirtualMachineInstanceMigration
	// Phase is the migration's phase if the caller has written one that Migration does not show
	// yet. If empty, Migration's counts.
	Phase kubevirt.MigrationPhase
	// VMI is the UID of its VMI: a former one of that name is another VM.
	VMI string
	// Node is the VM's node, or was when the migration started.
	Node string
	// Target is the node of its target pod, "" while that has none.
	Target string
	// HeldUntil is the latest end of the hold of a shutdown for it, or zero.
	HeldUntil time.Time
	// Waits means that its target pod waits for the scheduler.
	Waits bool
	// Marked means that the VM is marked to leave its node, so that this is its evacuation. A
	// migration's author may write anything into it, so its own fields can only lower its rank.
	Marked bool
	// Descheduler means that only the descheduler wants the marked VM elsewhere.
	Descheduler bool
	// Undecided means that only a person may be able to end it: it keeps no other node's VMs from moving.
	Undecided bool
	// Blocked means that it cannot start now, whatever the limits.
	Blocked bool
}

// held reports whether a shutdown is held for it.
func (m Moving) held() bool { return !m.HeldUntil.IsZero() }

// vm returns namespace/name/UID of the VM.
func (m Moving) vm() string {
	return m.Migration.Namespace + "/" + m.Migration.Spec.VMIName + "/" + m.VMI
}

func (m Moving) phase() kubevirt.MigrationPhase { return cmp.Or(m.Phase, PhaseOf(m.Migration)) }

func (m Moving) starts() bool { return m.phase() == kubevirt.MigrationPending }

// slots holds the limits on parallel migrations, and what is taken of them.
type slots struct {
	Settings

	cluster, held int
	node, target  map[string]int
}

func newSlots(s Settings) *slots {
	return &slots{Settings: s, node: map[string]int{}, target: map[string]int{}}
}

// HasOwnSlots reports whether the limit of held shutdowns counts for a migration, in place of
// those of the cluster and of its node.
func (s *Settings) HasOwnSlots(m *Moving) bool { return s.Held > 0 && m.held() }

func (s *slots) free(m *Moving) bool {
	if s.HasOwnSlots(m) {
		return s.held < s.Held
	}
	return s.cluster < s.PerCluster && s.node[m.Node] < s.PerNode
}

// full reports whether the node of a migration's target pod takes no further guest now. One for
// which a shutdown is held does not wait for that: it has no time.
func (s *slots) full(m *Moving) bool {
	return m.Target != "" && !m.held() && s.target[m.Target] >= s.PerTarget
}

func (s *slots) take(m *Moving) {
	s.target[m.Target]++
	parallel := &s.cluster
	if s.HasOwnSlots(m) {
		parallel = &s.held
	} else {
		s.node[m.Node]++
	}
	if !m.Undecided {
		*parallel++
	}
}

// Turns returns the migrations that have a slot and may go on, in order: pending ones that
// may start, one per VM, and those in phase Scheduling that may be handed to the agents once
// their target pod runs. Finished migrations in all are ignored.
//
// A migration from phase Scheduled on has a slot in any case. Then come those for which a
// shutdown is held, whatever their phase, then those in phase Scheduling, then pending ones. A
// migration whose pod waits for the scheduler, or is on a node to which as many guests are sent
// as may be, has none, so that others start meanwhile: at most as many as there are slots.
func Turns(all []Moving, s Settings) []Moving {
	var first, pending []Moving
	q := &queue{taken: newSlots(s), waiting: newSlots(s), moving: map[string]bool{}}
	for _, m := range all {
		switch phase := m.phase(); {
		case m.Migration.Final(), phase == kubevirt.MigrationFailed:
		case m.starts() && m.Blocked:
		case m.starts() && !m.held():
			pending = append(pending, m)
		case m.starts():
			first = append(first, m)
		case phase == kubevirt.MigrationScheduling:
			q.moving[m.vm()] = true
			first = append(first, m)
		default:
			q.moving[m.vm()] = true
			q.taken.take(&m)
		}
	}
	q.give(first)
	// Thousands may wait for a few slots: most need no order.
	q.give(slices.DeleteFunc(pending, func(m Moving) bool { return !q.taken.free(&m) }))
	return q.turns
}

// queue gives turns.
type queue struct {
	taken, waiting *slots
	moving         map[string]bool // VMs with a migration that has begun, or has a turn
	turns          []Moving
}

// give gives turns to those that have one, in order.
func (q *queue) give(queued []Moving) {
	slices.SortFunc(queued, inOrder)
	for _, m := range queued {
		full := q.taken.full(&m)
		switch {
		case m.starts() && q.moving[m.vm()]:
		case (m.Waits || full) && q.waiting.free(&m):
			q.waiting.take(&m)
		case q.taken.free(&m):
			q.taken.take(&m)
			q.moving[m.vm()] = true
			if !full {
				q.turns = append(q.turns, m)
			}
		}
	}
}

// Priority returns the priority of an evacuation: lower for the descheduler's.
func Priority(source string) string {
	if source == kubevirt.EvictionSourceDescheduler {
		return kubevirt.PrioritySystemMaintenance
	}
	return kubevirt.PrioritySystemCritical
}

func inOrder(a, b Moving) int {
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		a.HeldUntil.Compare(b.HeldUntil),
		a.Migration.CreationTimestamp.Compare(b.Migration.CreationTimestamp.Time),
		cmp.Compare(a.Migration.Namespace, b.Migration.Namespace),
		cmp.Compare(a.Migration.Name, b.Migration.Name),
	)
}

func rank(m Moving) int {
	priority := ""
	if m.Migration.Spec.Priority != nil {
		priority = *m.Migration.Spec.Priority
	}
	switch {
	case m.held():
		return rankHeld
	case !m.starts():
		return rankStarted
	case priority == kubevirt.PrioritySystemMaintenance && (m.Descheduler || !m.Marked):
		return rankDescheduler
	case m.Marked:
		return rankEvacuation
	}
	return rankUser
}
