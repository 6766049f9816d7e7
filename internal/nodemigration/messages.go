package nodemigration

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// report sets the state that this side sends to its peer.
func (s *side) report(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == state || s.state == kubevirt.SourceGone || s.state == kubevirt.SourceRunning {
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

// handle takes over a message of the peer. A peer's state is final, except TargetArrived.
func (s *side) handle(msg message) {
	state, valid := msg.TargetState, []string{kubevirt.TargetArrived, kubevirt.TargetRunning, kubevirt.TargetAbsent}
	if s.target {
		state, valid = msg.SourceState, []string{kubevirt.SourceGone, kubevirt.SourceRunning}
	}
	s.mu.Lock()
	if s.target {
		s.query, s.uuid, s.guestPaused = s.query || msg.Query, cmp.Or(s.uuid, msg.UUID), s.guestPaused || msg.GuestPaused
	} else {
		s.heard, s.peerKeepsPaused = true, msg.KeepsPaused
	}
	if slices.Contains(valid, state) && (s.peerState == "" || s.peerState == kubevirt.TargetArrived) {
		s.peerState = state
	}
	s.mu.Unlock()
	if !s.target {
		s.measureDowntime(msg)
	}
	s.wakeUp()
}

// stopped records when the guest was stopped for the last part of its migration.
func (s *side) stopped(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stoppedAt = at
}

// measureDowntime takes the downtime when the target reports that the guest runs: the time
// since the stop by this host's clock, less the time for which the guest has run by the
// target's clock. It is unknown where this agent has not seen the stop, or the target's
// agent has not resumed the guest.
func (s *side) measureDowntime(msg message) {
	s.mu.Lock()
	d := time.Since(s.stoppedAt) - msg.RanFor
	known := msg.TargetState == kubevirt.TargetRunning && msg.RanFor > 0 && s.state == kubevirt.SourceGone && !s.stoppedAt.IsZero() && d > 0
	first := known && s.downtime == 0
	if first {
		s.downtime = max(1, d.Milliseconds())
	}
	s.mu.Unlock()
	if first {
		s.node.cfg.Meter.Downtime(d)
		s.log.Info("the guest runs at the target", "downtime", d)
	}
}

// message is what this side sends now. changed is closed when there is a new one.
func (s *side) message() (msg message, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.target {
		return message{SourceState: s.state, Query: s.query, UUID: s.uuid, GuestPaused: s.keptPaused()}, s.changed
	}
	msg = s.relayEnd
	msg.TargetState, msg.KeepsPaused = s.state, true
	if s.state == kubevirt.TargetRunning && !s.resumedAt.IsZero() {
		msg.RanFor = max(1, time.Since(s.resumedAt))
	}
	return msg, s.changed
}

// exchange sends and receives messages until the control connection ends or the peer sends
// nothing for peerTimeout: a network that drops all packets closes no connection.
func (s *side) exchange(ctx context.Context, l *link) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var msg message
			if l.SetReadDeadline(time.Now().Add(peerTimeout)) != nil || l.readLine(&msg) != nil {
				return
			}
			s.handle(msg)
			if msg.Ended && !s.target {
				s.setRelayEnd(msg.Refusal)
			}
		}
	}()
	defer func() { _ = l.Close(); <-ended }()
	for {
		msg, changed := s.message()
		if err := l.writeLine(msg); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(heartbeatInterval):
		case <-ended:
			return nil
		}
	}
}
