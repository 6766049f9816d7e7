package migrate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
)

// Reasons of refused connections in the metrics, beside those of package tunnel.
const (
	refusedTLS        = "tls"        // no certificate of a node in time
	refusedUnexpected = "unexpected" // not of a migration that was agreed
	refusedMany       = "many"       // more connections than a node may have
)

// Log messages of refused connections, each at most once in refusalInterval.
const (
	refusedBefore = "a connection without a certificate of a node was ended"
	refusedAfter  = "a connection of another node was ended"
)

var (
	errDisplaced = errors.New("closed for a newer one: too many connections have no certificate yet")
	errMany      = fmt.Errorf("node has %d connections already", maxPerNode)
)

// serve accepts connections of other nodes.
func (n *Node) serve(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			n.refused.warn(n.cfg.Log, "cannot take a connection of another node; going on", "", err)
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
			continue
		}
		caller := n.door.enter(c)
		n.wg.Go(func() {
			defer func() { _ = c.Close() }() // even if it is closed already
			n.handleConnection(ctx, c, caller)
		})
	}
}

// handleConnection serves one connection. It counts and logs a refusal.
func (n *Node) handleConnection(ctx context.Context, c net.Conn, caller *caller) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	l, from, h, err := accept(ctx, n.cfg.Identity, c)
	if displaced := n.door.leave(caller); err != nil {
		if displaced {
			err = errDisplaced
		}
		n.refuse(ctx, refusedTLS, refusedBefore, c.RemoteAddr().String(), err)
		return
	}
	if !n.door.take(from) {
		n.refuse(ctx, refusedMany, refusedAfter, from, errors.Join(errMany, l.writeLine(reply{Error: errMany.Error()})))
		return
	}
	defer n.door.giveBack(from)
	s, err := n.admit(from, h)
	if err != nil {
		n.refuse(ctx, refusedUnexpected, refusedAfter, from, errors.Join(err, l.writeLine(reply{Error: err.Error()})))
		return
	}
	if h.Role == roleControl {
		// Before the reply: after it the other node may connect again, and that is the newer one.
		s.controlOpened(l)
		defer s.controlClosed(l)
	}
	if err = l.writeLine(reply{}); err != nil {
		s.connectionClosed(h)
		s.log.Debug("a connection of another node was ended", "from", from, "err", err)
		return
	}
	if h.Role == roleControl {
		err = s.exchange(ctx, l)
	} else {
		err = s.receive(ctx, l, h)
	}
	if r, is := errors.AsType[*tunnel.Refusal](err); is {
		n.refuse(ctx, r.Reason, refusedAfter, from, err)
	} else if err != nil {
		s.log.Warn("a connection of another node was ended", "from", from, "err", err)
	}
}

// admit returns the side of the migration that a connection is for.
func (n *Node) admit(from string, h hello) (*side, error) {
	n.mu.Lock()
	s := n.sides[h.MigrationUID]
	n.mu.Unlock()
	if s == nil || !s.target {
		return nil, fmt.Errorf("no migration %.64q is expected from node %s", h.MigrationUID, from)
	}
	return s, s.admit(from, h)
}

// refuse counts a refusal and logs it.
func (n *Node) refuse(ctx context.Context, reason, message, from string, err error) {
	if ctx.Err() != nil {
		return // the agent ends
	}
	n.cfg.Meter.TunnelRefused(reason)
	n.refused.warn(n.cfg.Log, message, from, err)
}
