package migrate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// A guest whose process is in its launcher pod is sent as QEMU's own stream: from a socket of
// the source's agent in one launcher directory to a socket of the target's agent in the other.
// The agents connect to no socket of a tenant's, and understand nothing of the stream.

const (
	// streamBuffer is what the relay of one stream holds, in bytes.
	streamBuffer = 256 << 10
	// receiveTimeout bounds the time until a launcher has connected its QEMU.
	receiveTimeout = 10 * time.Second
	// refusedMachine is the reason of a refused guest whose machine is another one.
	refusedMachine = "machine"
)

// kind returns how this side's guest is moved.
func (s *side) kind() Kind {
	if s.inLauncher() || s.node.cfg.Libvirt.Hypervisor == nil {
		return s.node.cfg.Launcher
	}
	return s.node.cfg.Libvirt
}

// inLauncher reports whether the guest's process is in its launcher pod.
func (s *side) inLauncher() bool {
	s.mu.Lock()
	m := s.migration
	s.mu.Unlock()
	return s.node.inLauncher(s.domain, m)
}

// inLauncher reports whether the process of a migration's guest is in its launcher pod: the
// guest's UUID in the status is that of the pod then. Only before the source's agent has written
// it the launcher directory says so. An agent that has just started has not looked there, and
// must not ask libvirt for a guest that it cannot have.
func (n *Node) inLauncher(domain string, m *Migration) bool {
	if s := migration.StateOf(m); s.DomainUUID != "" {
		return s.DomainUUID == s.SourcePodUID
	}
	return n.cfg.Launchers.Claims(domain)
}

// native reports whether libvirt of this node sends the guest directly.
func (s *side) native() bool { return s.node.cfg.URI.Native() && !s.inLauncher() }

// receiveStream gives the stream to the domain's launcher. The error is what the source gets as
// the refusal.
func (s *side) receiveStream(ctx context.Context, from *link, h hello) error {
	launchers := s.node.cfg.Launchers
	if is := launchers.Machine(s.domain); is == "" || is != h.Machine {
		return &tunnel.Refusal{Reason: refusedMachine, Text: fmt.Sprintf("the guest's machine is %.200q, and QEMU here has %q", h.Machine, is)}
	}
	l, err := launchers.Listen(s.domain)
	if err != nil {
		return fmt.Errorf("socket for the launcher: %w", err)
	}
	defer func() { _ = l.Close() }() // it may be closed already
	to, err := s.acceptQEMU(ctx, l)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.streamed = true
	s.mu.Unlock()
	m, _ := s.snapshot()
	copyStream(ctx, to, &limited{ctx: ctx, Conn: from, limit: streamLimit(m), passed: &s.passed})
	s.log.Info("the guest's connection has ended")
	return nil
}

// acceptQEMU makes the launcher connect its QEMU, and returns the connection.
func (s *side) acceptQEMU(ctx context.Context, l net.Listener) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, receiveTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	if err := s.node.cfg.Launchers.Receive(ctx, s.domain); err != nil {
		return nil, fmt.Errorf("the launcher does not take the guest: %w", err)
	}
	to, err := l.Accept() // its connection waits already, unless the launcher lies
	if err != nil {
		return nil, fmt.Errorf("the launcher has not connected its QEMU: %w", cmp.Or(ctx.Err(), err))
	}
	return to, nil
}

// streamLimit bounds a stream to the bandwidth that the migration may have, and a quarter more:
// QEMU keeps to it by itself, in bursts of 100 ms: they pass without a wait. It is nil where there is
// no limit.
func streamLimit(m *Migration) *rate.Limiter {
	o := migration.StateOf(m).Options
	if o == nil || o.BandwidthMiB <= 0 {
		return nil
	}
	const mib = 1 << 20
	perSecond := o.BandwidthMiB * mib * 5 / 4
	return rate.NewLimiter(rate.Limit(perSecond), int(max(mib, streamBuffer, perSecond/4)))
}

// copyStream copies a stream until it ends, the receiver ends, or ctx ends. It closes both
// connections. Nothing comes back from the receiver: what it says ends the stream.
func copyStream(ctx context.Context, to net.Conn, from *limited) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = to.Close()
		_ = from.Close()
	})
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = to.Read(make([]byte, 1)) // an answer, an end or an error: each ends the stream
		cancel()
	}()
	_, _ = io.CopyBuffer(writer{to}, reader{from}, make([]byte, streamBuffer)) // an error ends the stream
	cancel()
	_ = to.Close() // not before all was written
	_ = from.Close()
	<-ended
}

// writer hides ReadFrom, and reader WriteTo, which would not use the buffer.
type (
	writer struct{ io.Writer }
	reader struct{ io.Reader }
)

// limited is a connection whose reader keeps to a limit and counts what has passed.
type limited struct {
	net.Conn

	ctx    context.Context //nolint:containedctx // io.Reader has none
	limit  *rate.Limiter
	passed *atomic.Int64
}

func (l *limited) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.passed.Add(int64(n))
	if l.limit != nil && err == nil {
		err = l.limit.WaitN(l.ctx, n)
	}
	return n, err //nolint:wrapcheck // an io.Reader
}

// streamHello is the first line of the connection for a guest in its launcher pod.
func (s *side) streamHello(h hello) hello {
	h.Role, h.Machine = roleStream, s.node.cfg.Launchers.Machine(s.domain)
	return h
}

// listenFor makes the socket from which the source's agent relays the guest.
func (s *side) listenFor(out *hypervisor.Outgoing) (net.Listener, error) {
	if hypervisor.InLauncher(out.Instance) {
		return s.node.cfg.Launchers.Listen(s.domain) //nolint:wrapcheck // it says what was tried
	}
	l, err := listen(s.node.cfg.SocketDir)
	if err == nil {
		out.URI = "qemu+unix:///system?socket=" + l.Addr().String()
	}
	return l, err
}
