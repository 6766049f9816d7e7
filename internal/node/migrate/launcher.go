package migrate

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// A launcher is its tenant's. What it says of a migration, and what it does not say, may harm its
// own VM. It must not keep a migration from ending: others wait for its place.

const (
	// settleTimeout bounds what a launcher takes at the end of a migration: for the rest of the
	// stream, for the arrival of what was received, and for a word about the guest.
	settleTimeout = 15 * time.Second
	// callTimeout bounds the wait for a launcher that does not end a migration, since its stream
	// was ended.
	callTimeout = 10 * time.Second
)

// awaitRest waits for the end of a relay. The launcher says that its guest was sent: only the
// rest of the stream is on the way.
func awaitRest(relay context.Context) {
	select {
	case <-relay.Done():
	case <-time.After(settleTimeout):
	}
}

// abandonCall ends the wait for a launcher whose stream was ended.
func (s *side) abandonCall() {
	x := s.sending
	if x.endCall != nil && hypervisor.InLauncher(x.instance) && time.Since(x.abortedAt) > abortTimeout+callTimeout {
		x.endCall()
	}
}

// presumed returns the source's state of a guest whose launcher says nothing more once its
// migration is over: sent if the launcher has said so, otherwise it runs on. Nothing is sent any
// more by an agent that has just started.
func (s *side) presumed(m *Migration, here hypervisor.Stay, calling bool) hypervisor.Stay {
	x := s.sending
	switch over := s.jobIsOurs(m) && !calling && hypervisor.InLauncher(x.instance); {
	case !over || here != hypervisor.StayUnknown || x.ended():
		x.silent = time.Time{}
	case x.silent.IsZero():
		x.silent = time.Now()
	case time.Since(x.silent) < settleTimeout:
	case x.called() && x.err == nil:
		return hypervisor.StayLeft
	default:
		return hypervisor.StayRunning
	}
	return here
}

// reportSilence sends one Event about a launcher directory that does not answer. Nobody but the
// pod's owner can end that.
func (s *side) reportSilence(m *Migration) {
	if m.Status.Phase == kubevirt.MigrationRunning && s.inLauncher() {
		s.reportUndecided(m, fmt.Sprintf("the launcher of %s on node %s does not answer: its migration waits until it does, or its pod ends", m.Spec.VMIName, s.node.cfg.Node))
	}
}

// notGot returns why the target, which is in this state, has no guest that was sent by its
// launcher's word, or "".
func (s *side) notGot(state, target string) string {
	x := s.sending
	if !x.hadReturned || x.err != nil || !hypervisor.InLauncher(x.instance) || state != kubevirt.TargetAbsent {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relayEnd.Refusal != "" {
		return notLetIn(target, s.relayEnd.Refusal)
	}
	return cmp.Or(textOf(s.relayErr), fmt.Sprintf("the launcher says that the guest was sent, and node %s has not got it", target))
}

// notLetIn is why a guest was not sent that the target has refused.
func notLetIn(target, refusal string) string {
	return fmt.Sprintf("node %s did not let it in: %s", target, refusal)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// resume lets a guest go on. notResumed is when its launcher first did not.
func (s *side) resume(ctx context.Context, what string, i grace.Instance, notResumed *time.Time) bool {
	done := s.do(ctx, what, i, s.kind().Resume)
	if !done && hypervisor.InLauncher(i) && notResumed.IsZero() {
		*notResumed = time.Now()
	}
	return done
}

// notResumedInTime reports whether a launcher has not let its guest go on for long enough.
func notResumedInTime(since time.Time) bool {
	return !since.IsZero() && time.Since(since) > settleTimeout
}

// credible returns a launcher's word on the progress, within what this node can have and has
// relayed.
func (s *side) credible(p hypervisor.Progress) hypervisor.Progress {
	x := s.sending
	if !hypervisor.InLauncher(x.instance) {
		return p
	}
	if most := s.node.cfg.Allowed.Memory; most > 0 {
		p.Total = min(p.Total, most)
	}
	p.Remaining = min(p.Remaining, p.Total)
	passed := s.passed.Load()
	if passed == x.passed && x.total > 0 {
		p.Remaining = max(p.Remaining, x.minRemaining)
	}
	x.passed = passed
	return p
}

// settled reports whether a launcher has had its time since the end of the stream.
func (s *side) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received && !s.receiving && time.Since(s.relayEndedAt) > settleTimeout
}

// doubted returns the target's state of a guest, and whether a launcher may still be receiving
// it. A launcher that says nothing after its time has nothing, unless the guest is here alone or
// nowhere.
func (s *side) doubted(here hypervisor.Stay, i grace.Instance, source string, state *kubevirt.MigrationState) (is hypervisor.Stay, receives bool) {
	if !hypervisor.InLauncher(i) || i.PID == 0 || !s.settled() {
		return here, true
	}
	switch {
	case here != hypervisor.StayUnknown:
	case source != "":
		return hypervisor.StayPaused, false
	case state.TargetState == "" && !s.reported():
		return hypervisor.StayBusy, false
	default: // it was reported as arrived: the source decides
	}
	return here, false
}

// reported reports whether this side has told its peer a state.
func (s *side) reported() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state != ""
}

// unsent reports whether the launcher says that it has a guest whose stream never came here.
func (s *side) unsent(c migration.Copy, i grace.Instance, state *kubevirt.MigrationState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c != migration.CopyNone && c != migration.CopyUnknown && hypervisor.InLauncher(i) && !s.streamed && state.TargetState == ""
}
