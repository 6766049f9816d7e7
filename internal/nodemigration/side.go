package nodemigration

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// side is this node's side of one migration. Its goroutine decides and acts; the
// connections of the other side and the watch only leave word, under mu.
type side struct {
	node   *Node
	target bool
	domain string
	log    *slog.Logger
	wake   chan struct{}

	mu        sync.Mutex
	migration *Migration
	vanished  bool   // the watch shows the object no more
	other     string // what the other side has said on a connection
	state     string // what this side says
	heard     chan struct{}
	receiving bool
	received  bool // a connection was, or may have been before this agent was started
	settled   bool // the guest is not a migration's matter any more
	// phase: TargetReady or Running, which this side has written, or the source's
	// connection says, also where the watch does not show it yet.
	phase     kubevirt.MigrationPhase
	last      word // what the target's side says of the end of the guest's connection
	ended     chan struct{}
	joined    bool      // source: libvirt's connection has reached the target's agent
	unreached error     // source: why it has not
	asks      bool      // the source sends nothing more, and has to know what has arrived
	uuid      string    // of the domain that is sent, "" while it is not known
	stoppedAt time.Time // source: when the guest stopped for good; zero: it was not seen
	resumedAt time.Time // target: when it ran; zero: it was not resumed by this agent
	downtime  int64     // source: milliseconds; 0: not known

	// Only run's goroutine touches what follows.
	// The last status update, and when the API server has taken it.
	lastPhase kubevirt.MigrationPhase
	lastState kubevirt.MigrationState
	updatedAt time.Time
	gone      bool // the API server says that there is no such migration
	sending   *sending
	talking   bool

	remembered bool      // source: it is written down that the guest has left, if it can be
	paused     time.Time // since when the guest waits for a word of the other side
	reported   bool      // that it does
}

func (s *side) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *side) see(m *Migration) {
	s.mu.Lock()
	s.migration, s.vanished = m, false
	s.mu.Unlock()
	s.poke()
}

func (s *side) vanish() {
	s.mu.Lock()
	s.vanished = true
	s.mu.Unlock()
	s.poke()
}

func (s *side) standing(domain string) (grace.Migration, grace.Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.domain != domain:
		return grace.MigrationNone, grace.Arrival{}
	case s.settled:
		return grace.MigrationNone, s.arrival()
	case s.target:
		return grace.MigrationIncoming, s.arrival()
	default:
		return grace.MigrationOutgoing, grace.Arrival{}
	}
}

// arrival is what the core has to know of a guest that comes; the caller holds the
// lock.
func (s *side) arrival() grace.Arrival {
	state := migration.StateOf(s.migration)
	if !s.target || state.GracePeriodSeconds == nil {
		return grace.Arrival{}
	}
	return grace.Arrival{UID: state.VMIUID, Grace: strconv.FormatInt(*state.GracePeriodSeconds, 10)}
}

// snapshot is what others have left.
func (s *side) snapshot() (m *Migration, other string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, other = s.known(), s.other
	said := migration.StateOf(m).TargetState
	if s.target {
		said = migration.StateOf(m).SourceState
	}
	if said != "" && (other == "" || other == kubevirt.TargetArrived) {
		other = said
	}
	return m, other
}

// known is the migration as the watch shows it, or as it is known to be by now; the caller
// holds the lock.
func (s *side) known() *Migration {
	shown := s.migration.Status.Phase
	if s.phase == "" || shown != kubevirt.MigrationPreparingTarget && shown != kubevirt.MigrationTargetReady {
		return s.migration
	}
	late := *s.migration
	late.Status.Phase = s.phase
	return &late
}

// run is the side's life.
func (s *side) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTicker(tick)
	defer timer.Stop()
	defer s.stopSending()
	turn := s.targetTurn
	if !s.target {
		turn = func(ctx context.Context) bool { return s.sourceTurn(ctx, &wg) }
	}
	for !turn(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
	if !s.target {
		s.forget()
	}
}

// certified tells whether this node can prove who it is, and asks for that if not.
func (s *side) certified() bool {
	if s.node.cfg.Identity.Certificate() != nil {
		return true
	}
	s.node.cfg.Identity.Want()
	return false
}

// look asks the hypervisor what is here.
func (s *side) look(ctx context.Context) (hypervisor.Stay, grace.Instance) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	stay, instance, err := s.node.cfg.Hypervisor.Look(ctx, s.domain)
	if err != nil {
		s.log.Debug("cannot look at a domain that migrates", "err", err)
		return hypervisor.StayUnknown, instance
	}
	return stay, instance
}

// askGone asks for an object that the watch shows no more.
func (s *side) askGone(ctx context.Context) {
	s.mu.Lock()
	m, vanished := s.migration, s.vanished
	s.mu.Unlock()
	if !vanished || s.gone {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	gone, err := s.node.cfg.Cluster.Gone(ctx, m)
	if err != nil {
		s.log.Debug("cannot ask for the migration", "err", err)
	}
	s.gone = gone && err == nil
}

// settle: from now on the guest, if it is here, is one as any other.
func (s *side) settle() {
	s.mu.Lock()
	was, m := s.settled, s.migration
	s.settled = true
	s.mu.Unlock()
	if !was {
		s.node.cfg.VMs.Changed(m.Namespace, m.Spec.VMIName)
	}
}

// do does something to the guest, bounded, and tells whether it worked.
func (s *side) do(ctx context.Context, what string, i grace.Instance, f func(ctx context.Context, name string, i grace.Instance) error) bool {
	ctx, cancel := context.WithTimeout(ctx, doTimeout)
	defer cancel()
	if err := f(ctx, s.domain, i); err != nil {
		s.log.Error("a step of a migration failed; trying again", "step", what, "err", err)
		return false
	}
	s.poke() // to look what came of it
	return true
}

// updateStatus writes to the migration's status, unless m has it already or the same was
// written a moment ago, which the watch will show.
func (s *side) updateStatus(ctx context.Context, m *Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) {
	repeated := s.lastPhase == phase && s.lastState == state && time.Since(s.updatedAt) < tellTimeout
	if s.gone || repeated || hasStatus(m, phase, &state) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	if err := s.node.cfg.Cluster.UpdateStatus(ctx, m, phase, state); err != nil {
		s.log.Warn("cannot tell the API server of the migration; trying again", "err", err)
		return
	}
	s.lastPhase, s.lastState, s.updatedAt = phase, state, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if phase == kubevirt.MigrationTargetReady && s.phase == "" {
		s.phase = phase
	}
}

// hasStatus reports whether an update would change nothing.
func hasStatus(m *Migration, phase kubevirt.MigrationPhase, state *kubevirt.MigrationState) bool {
	old := migration.StateOf(m)
	return (phase == "" || m.Status.Phase == phase) && (state.DowntimeMilliseconds == 0 || old.DowntimeMilliseconds != 0) &&
		(state.SourceState == "" || old.SourceState == state.SourceState) && (state.TargetState == "" || old.TargetState == state.TargetState) &&
		state.Progress == nil && state.PauseTimestamp == nil
}
