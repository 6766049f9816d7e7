package nodemigration

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// say has every connection hear this side's state.
func (s *side) say(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == state || s.state == kubevirt.SourceGone || s.state == kubevirt.SourceRunning {
		return // the source's words, and the target's Running, are never taken back
	}
	s.state = state
	s.news()
}

// news has the connections say what is new; the caller holds the lock.
func (s *side) news() {
	close(s.heard)
	s.heard = make(chan struct{})
}

// end notes that the guest's connection has ended at the target, and why where that
// was the target's doing: there to tell the source, at the source to tell people.
func (s *side) end(refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.Ended {
		return
	}
	s.last = word{Ended: true, Refusal: refusal[:min(len(refusal), maxRefusal)]}
	close(s.ended)
	s.news()
}

// ask has every connection hear that nothing more is sent, and that this side has to
// know what has arrived.
func (s *side) ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asks {
		s.asks = true
		s.news()
	}
}

// hear takes over what the other side says. A word that was given stays, but for
// Arrived.
func (s *side) hear(w word) {
	state, words := w.TargetState, []string{kubevirt.TargetArrived, kubevirt.TargetRunning, kubevirt.TargetAbsent}
	if s.target {
		state, words = w.SourceState, []string{kubevirt.SourceGone, kubevirt.SourceRunning}
	}
	s.mu.Lock()
	if s.target {
		s.asks, s.uuid = s.asks || w.Asks, cmp.Or(s.uuid, w.UUID)
	}
	if slices.Contains(words, state) && (s.other == "" || s.other == kubevirt.TargetArrived) {
		s.other = state
	}
	s.mu.Unlock()
	if !s.target {
		s.measure(w)
	}
	s.poke()
}

// stopped: the guest stands still from now on, so that the rest of it is sent.
func (s *side) stopped(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stoppedAt = at
}

// measure takes the time for which the guest stood still, once it runs at the target:
// all of it by this host's clock, but for how long it has run there since, by that
// one's. What was not seen from its beginning to its end is not known.
func (s *side) measure(w word) {
	s.mu.Lock()
	d := time.Since(s.stoppedAt) - w.RanFor
	known := w.TargetState == kubevirt.TargetRunning && w.RanFor > 0 && s.state == kubevirt.SourceGone && !s.stoppedAt.IsZero() && d > 0
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

// speaks is what this side says on a connection.
func (s *side) speaks() (w word, heard <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.target {
		return word{SourceState: s.state, Asks: s.asks, UUID: s.uuid}, s.heard
	}
	w = s.last
	w.TargetState = s.state
	if s.state == kubevirt.TargetRunning && !s.resumedAt.IsZero() {
		w.RanFor = max(1, time.Since(s.resumedAt))
	}
	return w, s.heard
}

// talk exchanges words with the other side until the connection ends, or nothing
// comes of it any more: a link that swallows everything closes nothing.
func (s *side) talk(ctx context.Context, l *link) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var w word
			if l.SetReadDeadline(time.Now().Add(silence)) != nil || l.readLine(&w) != nil {
				return
			}
			s.hear(w)
			if w.Ended && !s.target {
				s.end(w.Refusal)
			}
		}
	}()
	defer func() { _ = l.Close(); <-ended }()
	for {
		w, heard := s.speaks()
		if err := l.writeLine(w); err != nil {
			return err
		}
		select {
		case <-heard:
		case <-time.After(beat):
		case <-ended:
			return nil
		}
	}
}
