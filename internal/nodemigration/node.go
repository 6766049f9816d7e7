package nodemigration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

const (
	// tick is how often a side looks, unasked.
	tick = time.Second
	// lookTimeout bounds a look, doTimeout what is done.
	lookTimeout = 5 * time.Second
	doTimeout   = 20 * time.Second
	tellTimeout = 10 * time.Second
	// maxConnections bounds what others may have open here.
	maxConnections = 64
	// maxRefusal bounds what the other side says, in a line that people read.
	maxRefusal = 400
)

// Config is what a Node is made of.
type Config struct {
	// Node is this node's name.
	Node string
	// LibvirtSocket is libvirt's, SocketDir where a socket is made for each outgoing
	// migration: a path that is the same for libvirt.
	LibvirtSocket, SocketDir string
	// URI has this node's libvirt send guests by itself, and receive them so.
	URI URITemplate
	// Paths and Networks are what an arriving domain may name.
	Paths, Networks []string
	Cluster         Cluster
	Identity        *Identity
	Sender          Sender
	Hypervisor      Hypervisor
	VMs             VMs
	Meter           Meter
	// Open opens a process, as process.Open does.
	Open func(pid int, start uint64) (Process, error)
	Log  *slog.Logger
}

// Node has this node's sides of migrations.
type Node struct {
	cfg     Config
	wake    chan struct{}
	address string // where others reach its listener; set by Run

	mu    sync.Mutex
	sides map[string]*side // by migration: nobody is both sides of one
	known bool             // each migration that there was has its side
	wg    sync.WaitGroup
}

// New returns a node that does nothing yet.
func New(cfg Config) *Node {
	return &Node{cfg: cfg, wake: make(chan struct{}, 1), sides: map[string]*side{}}
}

// Changed is called when Cluster.Migrations may say something else. It does not
// block.
func (n *Node) Changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run takes part in migrations until ctx ends: it serves others on l, which they reach
// at the address, and takes up what Changed tells of. What is under way is left to
// libvirt and the next agent.
func (n *Node) Run(ctx context.Context, l net.Listener, address string) {
	n.address = address
	n.clear()
	n.wg.Go(func() { n.serve(ctx, l) })
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for ctx.Err() == nil {
		n.takeUp(ctx)
		select {
		case <-n.wake:
		case <-ctx.Done():
		}
	}
	n.wg.Wait()
}

// takeUp gives each migration of the list to its side.
func (n *Node) takeUp(ctx context.Context) {
	all, complete := n.cfg.Cluster.Migrations()
	n.mu.Lock()
	first := complete && !n.known
	n.known = complete || n.known
	seen := map[string]bool{}
	for _, m := range all {
		state := migration.StateOf(m)
		target := state.TargetNode == n.cfg.Node
		if target == (state.SourceNode == n.cfg.Node) {
			continue // neither, or both: no migration of this node's
		}
		uid := string(m.UID)
		switch s := n.sides[uid]; {
		case s != nil && s.target == target:
			seen[uid] = true
			s.see(m)
		case s == nil && (!m.Final() || target && !settled(state.TargetState)):
			seen[uid] = true
			n.begin(ctx, m, target)
		}
	}
	for uid, s := range n.sides {
		if !seen[uid] {
			s.vanish()
		}
	}
	n.mu.Unlock()
	if first {
		n.cfg.VMs.Changed("", "") // all waited for it
	}
}

// settled: the target's last word.
func settled(targetState string) bool {
	return targetState == kubevirt.TargetRunning || targetState == kubevirt.TargetAbsent
}

// begin starts a side; the caller holds the lock.
func (n *Node) begin(ctx context.Context, m *Migration, target bool) {
	uid := string(m.UID)
	s := &side{
		node: n, target: target, wake: make(chan struct{}, 1), heard: make(chan struct{}), ended: make(chan struct{}),
		log:       n.cfg.Log.With("namespace", m.Namespace, "name", m.Spec.VMIName, "migration", m.Name),
		domain:    grace.DomainName(m.Namespace, m.Spec.VMIName),
		migration: m, received: m.Status.Phase == kubevirt.MigrationRunning,
	}
	n.sides[uid] = s
	n.wg.Go(func() {
		n.cfg.VMs.Changed(m.Namespace, m.Spec.VMIName)
		s.run(ctx)
		n.mu.Lock()
		delete(n.sides, uid)
		n.mu.Unlock()
		n.cfg.VMs.Changed(m.Namespace, m.Spec.VMIName)
		n.Changed()
	})
}

// Standing is what the grace period's rules have to know of a domain's migration, and
// of a guest that comes.
func (n *Node) Standing(domain string) (standing grace.Migration, a grace.Arrival) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sides {
		is, arrival := s.standing(domain)
		if is != grace.MigrationNone {
			standing = is
		}
		if arrival != (grace.Arrival{}) {
			a = arrival
		}
	}
	if standing == grace.MigrationNone && !n.known {
		standing = grace.MigrationUnknown
	}
	return standing, a
}

// Stopped is called when a domain that is sent stands still so that the rest of it can
// be. It does not block.
func (n *Node) Stopped(domain string, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sides {
		if !s.target && s.domain == domain {
			s.stopped(at)
		}
	}
}

// serve takes connections of other nodes.
func (n *Node) serve(ctx context.Context, l net.Listener) {
	slots := make(chan struct{}, maxConnections)
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			n.cfg.Log.Warn("cannot take a connection of another node; going on", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(tick):
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Close() // nobody honest has so many
			continue
		}
		n.wg.Go(func() {
			defer func() { <-slots }()
			defer func() { _ = c.Close() }() // whoever has ended it
			if err := n.welcome(ctx, c); err != nil {
				n.cfg.Log.Warn("a connection of another node was ended", "from", c.RemoteAddr().String(), "err", err)
			}
		})
	}
}

// welcome serves one connection.
func (n *Node) welcome(ctx context.Context, c net.Conn) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	l, from, h, err := accept(ctx, n.cfg.Identity, c)
	if err != nil {
		n.cfg.Meter.TunnelRefused("tls")
		return err
	}
	n.mu.Lock()
	s := n.sides[h.MigrationUID]
	n.mu.Unlock()
	if s == nil || !s.target {
		err = fmt.Errorf("no migration %.64q is expected from node %s", h.MigrationUID, from)
	} else {
		err = s.admit(from, h)
	}
	if err != nil {
		n.cfg.Meter.TunnelRefused("unexpected")
		return errors.Join(err, l.writeLine(reply{Error: err.Error()}))
	}
	if err := l.writeLine(reply{}); err != nil {
		s.over(h)
		return err
	}
	if h.Role == roleControl {
		return s.talk(ctx, l)
	}
	return s.receive(ctx, l, h)
}
