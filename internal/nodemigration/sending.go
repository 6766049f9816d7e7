package nodemigration

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

const (
	// progressEvery is how often people are told, and time-outs looked at.
	progressEvery = 2 * time.Second
	// abortPatience is how long libvirt gets after an abort before the connection is
	// closed: late in a migration an abort has no effect.
	abortPatience = 10 * time.Second
	// refusalPatience is how long the target's word is waited for, which libvirt's
	// error does not tell: to it a connection was closed.
	refusalPatience = 2 * time.Second

	// undecidedFor is how long a guest may wait for a word of the other node before
	// people are told.
	undecidedFor = 10 * time.Second

	reasonPaused    = "GuestPaused"
	reasonUndecided = "GuestUndecided"
)

// sending is an outgoing migration.
type sending struct {
	instance  grace.Instance
	process   Process         // nil where it is not watched
	gone      bool            // it had ended before it could be watched
	ranOn     bool            // it ran, or may have run, after the migration was over
	last      hypervisor.Stay // when it was looked at before
	busy      bool            // the job was seen
	hadAnswer bool            // libvirt's call had returned before the last look

	explained bool // what its end means is known

	hangUp    context.CancelFunc // of the guest's connection, where it is this agent's
	started   time.Time
	returned  chan struct{}           // closed when libvirt's call has returned; nil before it
	err       error                   // of the call; read it after returned
	abortedAt time.Time               // zero: it was not
	abortedBy string                  // why, since then
	paused    kubevirt.MigrationState // the status of a pause by this agent; zero: none

	asked   time.Time // for progress
	least   uint64    // of what remained
	leastAt time.Time
	total   uint64
}

// start has libvirt send the guest.
func (s *side) start(ctx context.Context, wg *sync.WaitGroup, m *Migration) {
	x := s.sending
	if x.process == nil || !s.certified() {
		return // until it is known, and the target's agent can be reached
	}
	out, l, err := s.outgoing(m)
	if err != nil {
		s.log.Error("cannot begin a migration; trying again", "err", err)
		return
	}
	telling, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	// The controller may give it up until then: one of the two is refused.
	if err := s.node.cfg.Cluster.UpdateStatus(telling, m, kubevirt.MigrationRunning, kubevirt.MigrationState{}); err != nil {
		s.log.Warn("cannot begin a migration; trying again", "err", err)
		if l != nil {
			_ = l.Close()
		}
		return
	}
	s.mu.Lock()
	s.phase, s.uuid = kubevirt.MigrationRunning, x.instance.UUID
	s.news()
	s.mu.Unlock()
	state := migration.StateOf(m)
	relay, hangUp := context.WithCancel(ctx)
	if l != nil {
		x.hangUp = hangUp
		wg.Go(func() { s.relay(relay, m, l) })
	}
	now := time.Now()
	x.started, x.asked, x.leastAt, x.returned = now, now, now, make(chan struct{})
	s.log.Info("sending the guest", "to", state.TargetNode, "address", state.TargetNodeAddress)
	wg.Go(func() {
		x.err = s.because(ctx, s.node.cfg.Sender.Migrate(ctx, out))
		if x.err != nil && ctx.Err() == nil {
			s.log.Warn("libvirt has not sent the guest", "err", x.err)
		}
		close(x.returned)
		hangUp()
		s.poke()
	})
}

// outgoing is what libvirt is asked: by itself, or through a socket that this agent
// listens on from now on.
func (s *side) outgoing(m *Migration) (out hypervisor.Outgoing, l net.Listener, err error) {
	state := migration.StateOf(m)
	out = hypervisor.Outgoing{Domain: s.domain, Instance: s.sending.instance}
	if o := state.Options; o != nil {
		out.Bandwidth, out.AutoConverge = uint64(max(0, o.BandwidthMiB)), o.AllowAutoConverge
	}
	if to := s.node.cfg.URI; to.Native() {
		out.Transport = to.transport()
		out.URI, err = to.at(state.TargetNodeAddress)
		return out, nil, err
	}
	if l, err = listen(s.node.cfg.SocketDir); err != nil {
		return out, nil, err
	}
	out.URI = "qemu+unix:///system?socket=" + l.Addr().String()
	return out, l, nil
}

// because says why the guest was not sent, where it is known better than by libvirt.
func (s *side) because(ctx context.Context, err error) error {
	s.mu.Lock()
	joined, unreached := s.joined, s.unreached
	s.mu.Unlock()
	if err == nil || !joined {
		return cmp.Or(unreached, err)
	}
	select {
	case <-s.ended:
	case <-time.After(refusalPatience):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.Refusal == "" {
		return err
	}
	return fmt.Errorf("node %s did not let it in: %s", migration.StateOf(s.migration).TargetNode, s.last.Refusal)
}

// listen makes a socket that libvirt connects to, in a directory of root's.
func listen(dir string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory for a socket: %w", err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, rand.Text()[:12])) //nolint:noctx // it does not wait
	if err != nil {
		return nil, fmt.Errorf("socket for libvirt: %w", err)
	}
	return l, nil
}

// relay joins libvirt's one connection to the target's agent.
func (s *side) relay(ctx context.Context, m *Migration, from net.Listener) {
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer stop()
	c, err := from.Accept()
	if err != nil {
		return
	}
	_ = from.Close() // one is all there is
	state := migration.StateOf(m)
	l, err := dial(ctx, s.node.cfg.Identity, state.TargetNode, state.TargetNodeAddress, hello{MigrationUID: string(m.UID), Role: roleRelay, UUID: s.sending.instance.UUID})
	if err != nil {
		s.log.Warn("cannot reach the target", "err", err)
		s.reached(err)
		_ = c.Close() // libvirt hears of it after that
		return
	}
	s.reached(nil)
	join(ctx, c, l)
}

// reached notes whether libvirt's connection has reached the target's agent.
func (s *side) reached(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined, s.unreached = err == nil, err
}

// abort has libvirt stop sending; where that has no effect, the connection ends, if it
// is this agent's.
func (s *side) abort(ctx context.Context, why string) {
	x := s.sending
	if x.abortedAt.IsZero() {
		x.abortedAt, x.abortedBy = time.Now(), why
		s.log.Info("aborting the migration", "why", why)
	}
	if x.hangUp != nil && time.Since(x.abortedAt) > abortPatience {
		x.hangUp()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := s.node.cfg.Sender.Abort(ctx, s.domain, x.instance)
	if err != nil && !errors.Is(err, hypervisor.ErrState) && !errors.Is(err, hypervisor.ErrNotFound) {
		s.log.Warn("cannot abort the migration; trying again", "err", err)
	}
}

// follow tells how far it is.
func (s *side) follow(ctx context.Context, m *Migration) {
	x := s.sending
	if !x.calling() || x.ended() || time.Since(x.asked) < progressEvery {
		return // of a QEMU that has ended libvirt's answer to the call is waited for
	}
	x.asked = time.Now()
	asking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	p, err := s.node.cfg.Sender.Progress(asking, s.domain, x.instance)
	if err != nil || p.Total == 0 {
		return
	}
	if x.total == 0 || p.Remaining < x.least {
		x.least, x.leastAt = p.Remaining, time.Now()
	}
	x.total = p.Total
	const mib = 1 << 20
	done := p.Total - min(p.Remaining, p.Total)
	state := x.paused // again: the first write of it may have failed
	state.Progress = &kubevirt.MigrationProgress{
		Percent: int64(100 * done / p.Total), RemainingMiB: int64(p.Remaining / mib), TotalMiB: int64(p.Total / mib),
	}
	s.updateStatus(ctx, m, "", state)
}

// pause stops the guest for the rest of its migration.
func (s *side) pause(ctx context.Context, m *Migration, why string) {
	x := s.sending
	s.log.Info("pausing the guest until it has moved", "why", why)
	at := time.Now()
	if s.do(ctx, "pause the guest", x.instance, s.node.cfg.Sender.Pause) {
		x.paused.SetPaused(at)
		s.node.cfg.Cluster.Event(m, reasonPaused, why)
		s.updateStatus(ctx, m, "", x.paused)
	}
}

// callTarget keeps a connection for words to the target's agent.
func (s *side) callTarget(ctx context.Context) {
	for ctx.Err() == nil {
		m, _ := s.snapshot()
		state := migration.StateOf(m)
		l, err := dial(ctx, s.node.cfg.Identity, state.TargetNode, state.TargetNodeAddress, hello{MigrationUID: string(m.UID), Role: roleControl})
		if err == nil {
			err = s.talk(ctx, l)
		}
		if err != nil {
			s.log.Debug("no words with the target", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(tick):
		}
	}
}

// stopSending lets go of QEMU. A call that is under way goes on in libvirt.
func (s *side) stopSending() {
	if s.sending == nil || s.sending.process == nil {
		return
	}
	if err := s.sending.process.Close(); err != nil {
		s.log.Debug("close pidfd", "err", err)
	}
}
