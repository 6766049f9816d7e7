package migration

import (
	"errors"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// errNoTurn means that the migration has lost its turn to another one since it was read. The
// queue enqueues it when it has one again.
var errNoTurn = errors.New("it is not its turn any more")

const (
	// doubtFor is how long a phase counts as written if its write may have succeeded.
	doubtFor = 10 * time.Second
	// asideFor is how long others go before a migration that could not begin.
	asideFor = time.Minute
)

// turns holds the migrations that may go on within the limits. The queue computes the turns.
// Each use of a turn is noted, because the cache shows a write only later. It is safe for
// concurrent use.
type turns struct {
	mu      sync.Mutex
	granted map[types.UID]bool
	written map[types.UID]written
	// undecided names an undecided migration that keeps a slot of a node, by node.
	undecided map[string]string
}

// written is a phase of a migration that was, or may have been, written.
type written struct {
	phase  kubevirt.MigrationPhase
	failed time.Time // when the write failed; zero if it did not
}

func newTurns() *turns {
	return &turns{granted: map[types.UID]bool{}, written: map[types.UID]written{}}
}

// has reports whether it is a migration's turn.
func (t *turns) has(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.granted[uid]
}

// undecidedOn names an undecided migration that keeps a slot of a node, or is "".
func (t *turns) undecidedOn(node string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.undecided[node]
}

// noteUndecided notes one undecided migration of each node, and reports whether that has changed. The caller
// holds the lock.
func (t *turns) noteUndecided(all []evacuation.Moving) (changed bool) {
	was := t.undecided
	t.undecided = map[string]string{}
	for _, m := range all {
		if first := t.undecided[m.Node]; m.Undecided && (first == "" || name(m.Migration) < first) {
			t.undecided[m.Node] = name(m.Migration)
		}
	}
	return !maps.Equal(was, t.undecided)
}

// use calls write, which writes the migration's phase, if it is its turn.
func (t *turns) use(m *object, phase kubevirt.MigrationPhase, write func() error) error {
	t.mu.Lock()
	if !t.granted[m.UID] {
		t.mu.Unlock()
		return errNoTurn
	}
	delete(t.granted, m.UID)
	t.written[m.UID] = written{phase: phase}
	t.mu.Unlock()

	err := write()
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		delete(t.written, m.UID) // certainly not written
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		t.written[m.UID] = written{phase, time.Now().Add(-doubtFor)} // neither, and the next write will be refused, too
	default:
		t.written[m.UID] = written{phase, time.Now()}
	}
	return err
}

// over notes that a migration is to end, and that this cannot be written: it holds nothing.
func (t *turns) over(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written[uid] = written{phase: kubevirt.MigrationFailed}
}

// refused sets a migration aside that has a turn but could not be written.
func (t *turns) refused(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.granted, uid)
	t.written[uid] = written{kubevirt.MigrationScheduling, time.Now().Add(-doubtFor)}
}

// compute replaces the turns. It returns the new ones and who is to hear of undecided ones, and the time until it has to compute
// again without an event, 0 if never.
func (t *turns) compute(all []evacuation.Moving, s evacuation.Settings, now time.Time) (fresh []*object, again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := map[types.UID]bool{} // of those in written: there are few
	for i := range all {
		if _, ok := t.written[all[i].Migration.UID]; ok {
			known[all[i].Migration.UID] = true
		}
		if left := t.settle(&all[i], now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	for uid := range t.written {
		if !known[uid] {
			delete(t.written, uid)
		}
	}
	if t.noteUndecided(all) {
		for _, m := range all {
			if evacuation.PhaseOf(m.Migration) == kubevirt.MigrationPending {
				fresh = append(fresh, m.Migration) // it says what it waits for
			}
		}
	}
	before := t.granted
	t.granted = map[types.UID]bool{}
	for _, m := range evacuation.Turns(all, s) {
		if _, unread := t.written[m.Migration.UID]; unread {
			continue // it has its slot, and used its turn
		}
		t.granted[m.Migration.UID] = true
		if !before[m.Migration.UID] {
			fresh = append(fresh, m.Migration)
		}
	}
	return fresh, again
}

// settle applies the written phase of a migration to it, until the cache shows that phase or
// doubtFor and asideFor have passed. It returns the time until that changes, 0 if only an
// event changes it.
func (t *turns) settle(m *evacuation.Moving, now time.Time) time.Duration {
	w, ok := t.written[m.Migration.UID]
	since := now.Sub(w.failed)
	switch {
	case !ok:
		return 0
	case m.Migration.Final(), migration.NotBefore(m.Migration, w.phase):
		delete(t.written, m.Migration.UID)
		return 0
	case w.failed.IsZero():
		m.Phase = w.phase
		return 0
	case since < doubtFor:
		m.Phase = w.phase
		return doubtFor - since
	case since < doubtFor+asideFor && w.phase == kubevirt.MigrationScheduling:
		m.Blocked = true
		return doubtFor + asideFor - since
	}
	delete(t.written, m.Migration.UID)
	return 0
}
