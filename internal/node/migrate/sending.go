package migrate

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

const (
	// progressInterval is how often the progress is read and written to the status.
	progressInterval = 2 * time.Second
	// abortTimeout is the time from an abort to closing the relay: late in a migration an
	// abort has no effect.
	abortTimeout = 10 * time.Second
	// refusalTimeout bounds the wait for the target's refusal. libvirt's own error only
	// says that a connection was closed.
	refusalTimeout = 2 * time.Second

	// undecidedTimeout is how long a guest may wait, paused, for the peer's state before
	// an Event is sent.
	undecidedTimeout = 10 * time.Second

	reasonPaused    = "GuestPaused"
	reasonUndecided = "GuestUndecided"
)

// sending is an outgoing migration.
type sending struct {
	instance    grace.Instance
	process     Process         // nil if it cannot be watched
	gone        bool            // the process had ended before it could be watched
	ranOn       bool            // the guest ran, or may have run, after the migration was over
	lastStay    hypervisor.Stay // at the last observation
	jobSeen     bool            // libvirt's job was observed
	hadReturned bool            // libvirt's call had returned before the last observation

	exitExplained bool // it is known what the end of the process means

	closeRelay context.CancelFunc // nil if libvirt sends directly
	started    time.Time
	returned   chan struct{}           // closed when libvirt's call has returned; nil before it
	err        error                   // of the call; read it after returned
	endCall    context.CancelFunc      // ends the wait for a launcher
	noSocket   string                  // why the launcher directory has no socket of this agent's
	silent     time.Time               // since when the launcher says nothing of a guest that it has sent, or not; zero: it does
	notResumed time.Time               // since when it does not let the guest go on; zero: it was not asked
	abortedAt  time.Time               // zero: not aborted
	abortedBy  string                  // the reason
	paused     kubevirt.MigrationState // the status of a pause by this agent; zero: not paused

	progressAt     time.Time // when the progress was read
	passed         int64     // bytes of a launcher's stream, at that time
	minRemaining   uint64    // the least remaining memory in bytes so far
	minRemainingAt time.Time
	total          uint64 // bytes
}

// start starts libvirt's migration.
func (s *side) start(ctx context.Context, wg *sync.WaitGroup, m *Migration) {
	x := s.sending
	if x.process == nil || migration.StateOf(m).DomainUUID == "" || !s.certified() {
		return // tried again later
	}
	out, l, err := s.outgoing(m)
	if err != nil && hypervisor.InLauncher(x.instance) {
		x.noSocket = err.Error()
		s.wakeUp()
		return
	}
	if err != nil {
		s.log.Error("cannot begin a migration; trying again", "err", err)
		return
	}
	updateCtx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	// The controller may cancel it at the same time: the API server accepts one of the two.
	paused := x.lastStay == hypervisor.StayPaused
	if err := s.node.cfg.Cluster.UpdateStatus(updateCtx, m, kubevirt.MigrationRunning, kubevirt.MigrationState{GuestPaused: paused}); err != nil {
		s.log.Warn("cannot begin a migration; trying again", "err", err)
		if l != nil {
			_ = l.Close()
		}
		return
	}
	s.mu.Lock()
	s.phase, s.guestPaused = kubevirt.MigrationRunning, paused
	s.broadcast()
	s.mu.Unlock()
	state := migration.StateOf(m)
	relay, closeRelay := context.WithCancel(ctx)
	if l != nil {
		x.closeRelay = closeRelay
		wg.Go(func() {
			defer closeRelay()
			s.relay(relay, m, l)
		})
	}
	now := time.Now()
	x.started, x.progressAt, x.minRemainingAt, x.returned = now, now, now, make(chan struct{})
	call, endCall := context.WithCancel(ctx)
	x.endCall = endCall
	s.log.Info("sending the guest", "to", state.TargetNode, "address", state.TargetNodeAddress)
	wg.Go(func() {
		defer endCall()
		x.err = s.failureCause(ctx, s.kind().Migrate(call, out))
		if x.err != nil && ctx.Err() == nil {
			s.log.Warn("the guest was not sent", "err", x.err)
		}
		close(x.returned)
		s.wakeUp()
		if x.err == nil && hypervisor.InLauncher(out.Instance) {
			awaitRest(relay)
		}
		closeRelay()
	})
}

// outgoing returns the parameters of libvirt's migration, and the socket to relay from; no
// socket if libvirt sends directly.
func (s *side) outgoing(m *Migration) (out hypervisor.Outgoing, l net.Listener, err error) {
	state := migration.StateOf(m)
	out = hypervisor.Outgoing{Domain: s.domain, Instance: s.sending.instance}
	if o := state.Options; o != nil {
		out.Bandwidth, out.AutoConverge = uint64(max(0, o.BandwidthMiB)), o.AllowAutoConverge
	}
	if to := s.node.cfg.URI; s.native() {
		out.Transport = to.transport()
		out.URI, err = to.at(state.TargetNodeAddress)
		return out, nil, err
	}
	l, err = s.listenFor(&out)
	return out, l, err
}

// abort aborts libvirt's job. If that has no effect within abortTimeout, it closes the relay.
func (s *side) abort(ctx context.Context, why string) {
	x := s.sending
	if x.abortedAt.IsZero() {
		x.abortedAt, x.abortedBy = time.Now(), why
		s.log.Info("aborting the migration", "why", why)
	}
	if x.closeRelay != nil && time.Since(x.abortedAt) > abortTimeout {
		x.closeRelay()
		s.abandonCall()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := s.kind().Abort(ctx, s.domain, x.instance)
	if err != nil && !errors.Is(err, hypervisor.ErrState) && !errors.Is(err, hypervisor.ErrNotFound) {
		s.log.Warn("cannot abort the migration; trying again", "err", err)
	}
}

// follow writes the progress to the status.
func (s *side) follow(ctx context.Context, m *Migration) {
	x := s.sending
	if m.Final() || !x.calling() || x.ended() || time.Since(x.progressAt) < progressInterval {
		return // once QEMU has ended, only the result of libvirt's call counts; a final migration shows no progress
	}
	x.progressAt = time.Now()
	progressCtx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	p, err := s.kind().Progress(progressCtx, s.domain, x.instance)
	if err != nil || p.Total == 0 {
		return
	}
	p = s.credible(p)
	if x.total == 0 || p.Remaining < x.minRemaining {
		x.minRemaining, x.minRemainingAt = p.Remaining, time.Now()
	}
	x.total = p.Total
	const mib = 1 << 20
	done := p.Total - min(p.Remaining, p.Total)
	state := x.paused // repeated: the first update may have failed
	state.Progress = &kubevirt.MigrationProgress{
		Percent: int64(100 * done / p.Total), RemainingMiB: int64(p.Remaining / mib), TotalMiB: int64(p.Total / mib),
	}
	s.updateStatus(ctx, m, "", state)
}

// pause pauses the guest for the rest of its migration.
func (s *side) pause(ctx context.Context, m *Migration, why string) {
	x := s.sending
	s.log.Info("pausing the guest until it has moved", "why", why)
	at := time.Now()
	if s.do(ctx, "pause the guest", x.instance, s.kind().Pause) {
		x.paused.SetPaused(at)
		s.node.cfg.Cluster.Event(m, reasonPaused, why)
		s.updateStatus(ctx, m, "", x.paused)
	}
}

// runControl keeps a control connection to the target's agent until ctx ends.
func (s *side) runControl(ctx context.Context) {
	for ctx.Err() == nil {
		m, _ := s.snapshot()
		state := migration.StateOf(m)
		l, err := dial(ctx, s.node.cfg.Identity, state.TargetNode, state.TargetNodeAddress, hello{MigrationUID: string(m.UID), Role: roleControl, UUID: state.DomainUUID})
		if err == nil {
			s.setLinked(true)
			err = s.exchange(ctx, l)
			s.setLinked(false)
		}
		if err != nil {
			s.log.Debug("no control connection to the target", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(tick):
		}
	}
}

// setLinked records whether the target's agent is connected.
func (s *side) setLinked(linked bool) {
	s.mu.Lock()
	s.linked = linked
	s.mu.Unlock()
	s.wakeUp()
}

// closeProcess closes QEMU's pidfd. A migration that is under way continues in libvirt.
func (s *side) closeProcess() {
	if s.sending == nil || s.sending.process == nil {
		return
	}
	if err := s.sending.process.Close(); err != nil {
		s.log.Debug("close pidfd", "err", err)
	}
}

// couldNotResume reports whether libvirt could not let the guest go on after our migration, as while QEMU
// at the target has locked its disks. Then the guest has not run since.
func (s *side) couldNotResume(m *Migration, here hypervisor.Stay) bool {
	return here == hypervisor.StayNotResumed && s.jobIsOurs(m) && !s.sending.ranOn && migration.StateOf(m).SourceState == ""
}
