package migrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// messageRate bounds a peer's messages per second in one migration, over all its control
// connections. messageBurst bounds those at once. An agent sends one in heartbeatInterval,
// one for each state, and one on each connection.
const (
	messageRate  = 4
	messageBurst = 20
)

// report sets the state that this side sends to its peer.
func (s *side) report(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.state == kubevirt.SourceRunning && state == kubevirt.SourceGone // the guest of a fenced node
	if s.state == state || s.state == kubevirt.SourceGone || s.state == kubevirt.SourceRunning && !ended {
		return // SourceGone, SourceRunning and TargetRunning (the same value) are final
	}
	s.state = state
	s.broadcast()
}

// broadcast makes each control connection send the new message. The caller holds the lock.
func (s *side) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// setRelayEnd records that the relay connection has ended at the target, and the refusal
// if the target has ended it. The target sends both to the source, which uses the refusal
// as the failure reason.
func (s *side) setRelayEnd(refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relayEnd.Ended {
		return
	}
	s.relayEnd = message{Ended: true, Refusal: refusal[:min(len(refusal), maxRefusal)]}
	close(s.relayEnded)
	s.broadcast()
}

// queryTarget tells the target that nothing more is sent, and asks for its state.
func (s *side) queryTarget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.query {
		s.query = true
		s.broadcast()
	}
}

// handle processes a message of the peer. A peer's state is final, except TargetArrived, and
// SourceRunning if the source's node was fenced and its guest has ended since.
// handle wakes run only if the message says something new.
func (s *side) handle(msg message) error {
	state, valid := msg.TargetState, []string{kubevirt.TargetArrived, kubevirt.TargetRunning, kubevirt.TargetAbsent}
	if s.target {
		state, valid = msg.SourceState, []string{kubevirt.SourceGone, kubevirt.SourceRunning}
	}
	s.mu.Lock()
	agreed := migration.StateOf(s.migration).DomainUUID
	changed := s.note(msg)
	open := s.peerState == "" || s.peerState == kubevirt.TargetArrived || s.target && s.peerState == kubevirt.SourceRunning && state == kubevirt.SourceGone
	if slices.Contains(valid, state) && state != s.peerState && open {
		s.peerState, changed = state, true
	}
	s.mu.Unlock()
	if s.target && msg.UUID != "" && msg.UUID != agreed {
		return &tunnel.Refusal{Reason: tunnel.ReasonParam, Text: fmt.Sprintf("a message about domain %.64q; %q was agreed", msg.UUID, agreed)}
	}
	if !s.target && s.measureDowntime(msg) || changed {
		s.wakeUp()
	}
	return nil
}

// note stores what a message says beside the peer's state. It reports whether that is new.
// The caller holds s.mu.
func (s *side) note(msg message) (changed bool) {
	if s.target {
		changed = msg.Query && !s.query || msg.GuestPaused && !s.guestPaused
		s.query, s.guestPaused = s.query || msg.Query, s.guestPaused || msg.GuestPaused
		return changed
	}
	changed = !s.heard || s.peerKeepsPaused != msg.KeepsPaused || s.fencedByPeer != msg.Fenced
	s.heard, s.peerKeepsPaused, s.fencedByPeer = true, msg.KeepsPaused, msg.Fenced
	return changed
}

// stopped records when the guest was stopped for the last part of its migration.
func (s *side) stopped(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stoppedAt = at
}

// measureDowntime measures the downtime when the target reports that the guest runs. It is
// the time since the stop by this host's clock, less the time for which the guest has run by
// the target's clock. It is unknown if this agent has not seen the stop, or the target's
// agent has not resumed the guest. measureDowntime reports whether it was measured now.
func (s *side) measureDowntime(msg message) (first bool) {
	s.mu.Lock()
	d := time.Since(s.stoppedAt) - msg.RanFor
	known := msg.TargetState == kubevirt.TargetRunning && msg.RanFor > 0 && s.state == kubevirt.SourceGone && !s.stoppedAt.IsZero() && d > 0
	first = known && s.downtime == 0
	if first {
		s.downtime = max(1, d.Milliseconds())
	}
	s.mu.Unlock()
	if first {
		s.node.cfg.Meter.Downtime(d)
		s.log.Info("the guest runs at the target", "downtime", d)
	}
	return first
}

// message returns what this side sends now. changed is closed when there is a new one.
func (s *side) message() (msg message, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.target {
		return message{SourceState: s.state, Query: s.query, UUID: migration.StateOf(s.migration).DomainUUID, GuestPaused: s.keptPaused()}, s.changed
	}
	msg = s.relayEnd
	msg.Fenced = migration.StateOf(s.migration).SourceFenced != "" && migration.StateOf(s.migration).SourceState == kubevirt.SourceGone
	msg.TargetState, msg.KeepsPaused = s.state, true
	if s.state == kubevirt.TargetRunning && !s.resumedAt.IsZero() {
		msg.RanFor = max(1, time.Since(s.resumedAt))
	}
	return msg, s.changed
}

// exchange sends and receives messages until the control connection ends or the peer sends
// nothing for peerTimeout: a network that drops all packets closes no connection. The error
// is a *tunnel.Refusal if the peer sends too many messages, or one that was not agreed.
func (s *side) exchange(ctx context.Context, l *link) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.receiveMessages(l) }()
	for {
		msg, changed := s.message()
		if err := l.writeLine(msg); err != nil {
			_ = l.Close()
			return cmp.Or(<-ended, err)
		}
		select {
		case <-changed:
		case <-time.After(heartbeatInterval):
		case err := <-ended:
			_ = l.Close()
			return err
		}
	}
}

// receiveMessages handles messages until the connection ends or one is refused.
func (s *side) receiveMessages(l *link) error {
	for {
		var msg message
		if l.SetReadDeadline(time.Now().Add(peerTimeout)) != nil || l.readLine(&msg) != nil {
			return nil //nolint:nilerr // the end of a connection says nothing about the guest
		}
		if !s.messages.Allow() {
			return &tunnel.Refusal{Reason: tunnel.ReasonRate, Text: fmt.Sprintf("more than %d messages a second", messageRate)}
		}
		if err := s.handle(msg); err != nil {
			return err
		}
		if msg.Ended && !s.target {
			s.setRelayEnd(msg.Refusal)
		}
	}
}

// controlOpened keeps at most maxControls control connections: a new one replaces the oldest.
func (s *side) controlOpened(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controls = append(s.controls, l); len(s.controls) > maxControls {
		_ = s.controls[0].Close()
		s.controls = s.controls[1:]
	}
}

func (s *side) controlClosed(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controls = slices.DeleteFunc(s.controls, func(other *link) bool { return other == l })
}
