package migration

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// phases records since when this process has seen each unfinished migration in its
// present phase, with its present states and progress, by this machine's clock. It is safe for concurrent use.
type phases struct {
	mu  sync.Mutex
	now map[types.UID]seenPhase
	// undecided is what was last reported of undecided migrations.
	undecided map[types.UID]string
}

type seenPhase struct {
	phase   kubevirt.MigrationPhase
	states  string // of the agents, and the progress
	at      time.Time
	trouble string // the last error of making the target pod, or of the hand-over, in one line
}

func newPhases() *phases {
	return &phases{now: map[types.UID]seenPhase{}, undecided: map[types.UID]string{}}
}

// since returns when a migration was first read in its present phase, and its trouble
// in it.
func (p *phases) since(m *object, now time.Time) (time.Time, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Final() {
		delete(p.now, m.UID)
		return now, ""
	}
	phase := evacuation.PhaseOf(m)
	states := migration.StateOf(m).SourceState + "/" + migration.StateOf(m).TargetState
	if progress := migration.StateOf(m).Progress; progress != nil {
		states += fmt.Sprint(" ", progress.RemainingMiB)
	}
	if s, ok := p.now[m.UID]; ok && s.phase == phase && s.states == states {
		return s.at, s.trouble
	}
	p.now[m.UID] = seenPhase{phase: phase, states: states, at: now}
	return now, ""
}

// trouble notes an error in a migration's present phase.
func (p *phases) trouble(m *object, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s, ok := p.now[m.UID]; ok {
		s.trouble = text
		p.now[m.UID] = s
	}
}

// forget drops a migration that was deleted.
func (p *phases) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.now, uid)
	delete(p.undecided, uid)
}

// waits notes what an undecided migration waits for, "" if it is decided, and reports whether that is new.
func (p *phases) waits(uid types.UID, text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.undecided[uid] != text
	if p.undecided[uid] = text; text == "" {
		delete(p.undecided, uid)
	}
	return is
}

// isUndecided reports whether a migration was last seen to be undecided.
func (p *phases) isUndecided(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.undecided[uid] != ""
}
