package migrate

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// failureCause replaces libvirt's error by the relay's error or the target's refusal, if
// there is one.
func (s *side) failureCause(ctx context.Context, err error) error {
	s.mu.Lock()
	connected, relayErr := s.relayConnected, s.relayErr
	s.mu.Unlock()
	if err == nil || !connected {
		return cmp.Or(relayErr, err)
	}
	select {
	case <-s.relayEnded:
	case <-time.After(refusalTimeout):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	target := migration.StateOf(s.migration).TargetNode
	switch {
	case s.relayEnd.Refusal != "":
		return errors.New(notLetIn(target, s.relayEnd.Refusal))
	case !s.linked:
		return fmt.Errorf("the agent of node %s was restarted while the guest was sent, or cannot be reached any more: %w", target, err)
	}
	return err
}

// listen makes a socket for libvirt in a directory that only root can enter.
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

// relay connects the hypervisor's one connection with the target's agent.
func (s *side) relay(ctx context.Context, m *Migration, from net.Listener) {
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	defer stop()
	c, err := from.Accept()
	if err != nil {
		return
	}
	_ = from.Close() // a migration has one connection
	state := migration.StateOf(m)
	h := hello{MigrationUID: string(m.UID), Role: roleRelay, UUID: state.DomainUUID}
	streams := s.inLauncher()
	if streams {
		h = s.streamHello(h)
	}
	l, err := dial(ctx, s.node.cfg.Identity, state.TargetNode, state.TargetNodeAddress, h)
	if err != nil {
		s.log.Warn("cannot reach the target", "err", err)
		s.setRelayResult(err)
		_ = c.Close() // only now: failureCause follows libvirt's error
		return
	}
	s.setRelayResult(nil)
	if streams {
		copyStream(ctx, l, &limited{ctx: ctx, Conn: c, limit: streamLimit(m), passed: &s.passed})
		return
	}
	copyBothWays(ctx, c, l)
}

// setRelayResult records whether the relay connection to the target's agent was made.
func (s *side) setRelayResult(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relayConnected, s.relayErr = err == nil, err
}

// restarted returns why the migration failed if this agent has not begun it, and its relay ended with the one before,
// or "".
func (s *side) restarted(f *migration.SourceFacts) string {
	if f.Native || s.sending.called() || !s.received {
		return ""
	}
	return "the agent of node " + s.node.cfg.Node + " was restarted while the guest was sent"
}
