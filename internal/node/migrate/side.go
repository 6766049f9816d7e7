package migrate

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// side is this node's side of one migration. Its goroutine decides and acts. The peer's
// connections and the watch only set fields, under mu.
type side struct {
	node   *Node
	target bool
	domain string
	log    *slog.Logger
	wake   chan struct{}
	// messages bounds the messages of the peer.
	messages *rate.Limiter

	mu        sync.Mutex
	migration *Migration
	missing   bool          // the object is no longer in the watch's cache
	peerState string        // the last state that the peer has sent
	state     string        // the state that this side sends
	changed   chan struct{} // closed when there is a new message to send
	receiving bool          // target: the relay connection is open
	streamed  bool          // target: a launcher was given the guest's stream, or may have been before this agent started
	received  bool          // target: it was open, or may have been before this agent started
	released  bool          // the migration no longer decides about the guest
	// phase is TargetReady or Running if this side has written it, or has accepted the
	// relay connection. The watch may show it later.
	phase          kubevirt.MigrationPhase
	offered        bool    // target: it has written TargetReady, or is about to
	relayEnd       message // only Ended and Refusal
	relayEnded     chan struct{}
	relayConnected bool  // source: the relay connection to the target's agent was made
	relayErr       error // source: why it failed
	query          bool  // the source sends nothing more, and asks for the target's state
	guestPaused    bool  // its user had paused the guest when it was sent
	// Source: the target's agent has sent a message, leaves a paused guest paused, and knows that
	// this node is fenced.
	heard, peerKeepsPaused, fencedByPeer bool
	linked                               bool         // source: the target's agent is connected
	stoppedAt                            time.Time    // source: when libvirt stopped the guest; zero: unknown
	resumedAt                            time.Time    // target: when this agent resumed the guest; zero: it did not
	downtime                             int64        // source: in milliseconds; 0: unknown
	controls                             []*link      // target: open control connections, oldest first
	relayedAt                            time.Time    // target: when this agent let the relay connection in; zero: it did not
	relayEndedAt                         time.Time    // target: when that ended, or this side began
	passed                               atomic.Int64 // bytes of a launcher's stream that this agent has read

	// The following fields belong to run's goroutine.

	// The last status update, and when it succeeded.
	lastPhase  kubevirt.MigrationPhase
	lastState  kubevirt.MigrationState
	updatedAt  time.Time
	gone       bool // the API server has confirmed that the migration no longer exists
	sending    *sending
	connecting bool // source: runControl was started

	pausedRecorded    bool      // target: the record of a guest that arrived paused was written, or failed
	departureRecorded bool      // source: the record of the guest's departure was written, or failed
	undecidedSince    time.Time // since when the guest waits, paused, for the peer's state
	undecidedReported bool      // the Event about it was sent
	notResumed        time.Time // target: since when the launcher does not let the guest go on; zero: it does, or was not asked
	fencedSince       time.Time // target: since when it knows that the source's node is fenced, without a connection to its agent
}

func newSide(n *Node, m *Migration, target bool) *side {
	begun := m.Status.Phase == kubevirt.MigrationRunning
	return &side{
		node: n, target: target, wake: make(chan struct{}, 1), changed: make(chan struct{}), relayEnded: make(chan struct{}),
		log:       n.cfg.Log.With("namespace", m.Namespace, "name", m.Spec.VMIName, "migration", m.Name),
		domain:    grace.DomainName(m.Namespace, m.Spec.VMIName),
		migration: m, received: begun, streamed: begun, relayEndedAt: time.Now(),
		messages: rate.NewLimiter(messageRate, messageBurst),
	}
}

func (s *side) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *side) setMigration(m *Migration) {
	s.mu.Lock()
	s.migration, s.missing = m, false
	s.mu.Unlock()
	s.wakeUp()
}

func (s *side) setMissing() {
	s.mu.Lock()
	s.missing = true
	s.mu.Unlock()
	s.wakeUp()
}

func (s *side) migrationOf(domain string) (grace.Migration, grace.Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.domain != domain:
		return grace.MigrationNone, grace.Arrival{}
	case s.released:
		return grace.MigrationNone, s.arrival()
	case s.target:
		return grace.MigrationIncoming, s.arrival()
	default:
		return grace.MigrationOutgoing, grace.Arrival{}
	}
}

// arrival returns what the core needs to know about an arriving guest. The caller holds the
// lock.
func (s *side) arrival() grace.Arrival {
	state := migration.StateOf(s.migration)
	if !s.target || state.GracePeriodSeconds == nil {
		return grace.Arrival{}
	}
	return grace.Arrival{UID: state.VMIUID, Grace: strconv.FormatInt(*state.GracePeriodSeconds, 10)}
}

// keptPaused reports whether the guest is to stay paused where it arrives: its user had
// paused it when it was sent. The caller holds the lock.
func (s *side) keptPaused() bool { return s.guestPaused || migration.StateOf(s.migration).GuestPaused }

// snapshot returns the migration, and the peer's state from its messages or the status.
func (s *side) snapshot() (m *Migration, peerState string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, peerState = s.current(), s.peerState
	inStatus := migration.StateOf(m).TargetState
	if s.target {
		inStatus = migration.StateOf(m).SourceState
	}
	if inStatus != "" && (peerState == "" || peerState == kubevirt.TargetArrived) {
		peerState = inStatus
	}
	// The controller may have fenced the source's node before that agent could report: then it has
	// to end its guest. Only the status shows which came first.
	if s.target && peerState == kubevirt.SourceRunning {
		peerState = inStatus
	}
	return m, peerState
}

// current returns the watch's migration, with a later phase if this side knows one. The
// caller holds the lock.
func (s *side) current() *Migration {
	cached := s.migration.Status.Phase
	if s.phase == "" || cached != kubevirt.MigrationPreparingTarget && cached != kubevirt.MigrationTargetReady {
		return s.migration
	}
	m := *s.migration
	m.Status.Phase = s.phase
	return &m
}

// run decides and acts until the side is done or ctx ends.
func (s *side) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTicker(tick)
	defer timer.Stop()
	defer s.closeProcess()
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
		s.removeDeparture()
	}
}

// certified reports whether this node has a valid certificate, and requests one if not.
func (s *side) certified() bool {
	if s.node.cfg.Identity.Certificate() != nil {
		return true
	}
	s.node.cfg.Identity.RefreshSoon()
	return false
}

// look asks the hypervisor for the domain's state on this node.
func (s *side) look(ctx context.Context) (hypervisor.Stay, grace.Instance) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	stay, instance, err := s.kind().Look(ctx, s.domain)
	if err != nil {
		s.log.Debug("cannot get the state of a migrating domain", "err", err)
		return hypervisor.StayUnknown, instance
	}
	return stay, instance
}

// checkGone asks the API server for an object that is missing in the watch's cache.
func (s *side) checkGone(ctx context.Context) {
	s.mu.Lock()
	m, missing := s.migration, s.missing
	s.mu.Unlock()
	if !missing || s.gone {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	gone, err := s.node.cfg.Cluster.Gone(ctx, m)
	if err != nil {
		s.log.Debug("cannot get the migration", "err", err)
	}
	s.gone = gone && err == nil
}

// release ends the migration's influence: a guest on this node is guarded as any other.
func (s *side) release() {
	s.mu.Lock()
	was, m := s.released, s.migration
	s.released = true
	s.mu.Unlock()
	if !was {
		s.node.cfg.VMs.Changed(m.Namespace, m.Spec.VMIName)
	}
}

// do calls f for the domain with a timeout, and reports whether it succeeded.
func (s *side) do(ctx context.Context, what string, i grace.Instance, f func(ctx context.Context, name string, i grace.Instance) error) bool {
	ctx, cancel := context.WithTimeout(ctx, doTimeout)
	defer cancel()
	if err := f(ctx, s.domain, i); err != nil {
		s.log.Error("a step of a migration failed; trying again", "step", what, "err", err)
		return false
	}
	s.wakeUp() // to observe the result
	return true
}

// updateStatus writes to the migration's status. It skips an update that m has already, or
// that was written just before and is not in the watch's cache yet.
func (s *side) updateStatus(ctx context.Context, m *Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) {
	state.FailureReason = oneline.Cut(state.FailureReason, maxReason)
	if m.Final() {
		state.FailureReason = "" // a final migration keeps its reason
	}
	repeated := s.lastPhase == phase && s.lastState == state && time.Since(s.updatedAt) < apiTimeout
	if s.gone || repeated || hasStatus(m, phase, &state) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := s.node.cfg.Cluster.UpdateStatus(ctx, m, phase, state); err != nil {
		s.log.Warn("cannot update the status of a migration; trying again", "err", err)
		return
	}
	s.lastPhase, s.lastState, s.updatedAt = phase, state, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if phase == kubevirt.MigrationTargetReady && s.phase == "" {
		s.phase = phase
	}
}

// maxReason bounds a failure reason in bytes; an admission policy rejects longer ones.
const maxReason = 990

// hasStatus reports whether an update would change nothing.
func hasStatus(m *Migration, phase kubevirt.MigrationPhase, state *kubevirt.MigrationState) bool {
	old := migration.StateOf(m)
	return (phase == "" || m.Status.Phase == phase) && (state.DowntimeMilliseconds == 0 || old.DowntimeMilliseconds != 0) &&
		(state.SourceState == "" || old.SourceState == state.SourceState) && (state.TargetState == "" || old.TargetState == state.TargetState) &&
		(state.DomainUUID == "" || old.DomainUUID == state.DomainUUID) && state.Progress == nil && state.PauseTimestamp == nil
}
