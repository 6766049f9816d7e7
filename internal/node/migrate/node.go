package migrate

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

const (
	// tick is how often a side observes without an event.
	tick = time.Second
	// lookTimeout bounds an observation, doTimeout a step, apiTimeout an API request.
	lookTimeout = 5 * time.Second
	doTimeout   = 20 * time.Second
	apiTimeout  = 10 * time.Second
	// maxRefusal bounds the peer's text in a failure reason, in bytes.
	maxRefusal = 400
)

// Config has the parameters and dependencies of a Node.
type Config struct {
	// Node is this node's name.
	Node string
	// LibvirtSocket is where libvirt listens. SocketDir gets a socket for each outgoing
	// migration; libvirt must see it at the same path.
	LibvirtSocket, SocketDir string
	// URI makes libvirt send guests directly, without the agents' relay.
	URI URITemplate
	// Allowed is what an arriving domain may use of this host. Name and UUID are each
	// migration's own.
	Allowed  tunnel.Agreement
	Cluster  Cluster
	Identity *Identity
	// Libvirt is zero on a node without it.
	Libvirt, Launcher Kind
	Launchers         Launchers
	VMs               VMs
	Meter             Meter
	// GoesDown reports whether this node shuts down. It takes no guest then.
	GoesDown func() bool
	// Open opens a process, as process.Open does.
	Open func(pid int, start uint64) (Process, error)
	Log  *slog.Logger
}

// Node runs this node's sides of migrations. All methods but Run may be called at any time.
type Node struct {
	cfg     Config
	wake    chan struct{}
	address string // of its listener, for other nodes; set by Run
	door    door
	refused refusals

	mu     sync.Mutex
	sides  map[string]*side // by migration: a node is never both sides of one
	synced bool             // each migration of the first complete list has its side
	looked map[string]bool  // failed migrations to this node, which was fenced, that lookOnce has decided on
	wg     sync.WaitGroup
}

// New returns a node; Run starts it.
func New(cfg Config) *Node {
	return &Node{cfg: cfg, wake: make(chan struct{}, 1), sides: map[string]*side{}, looked: map[string]bool{}}
}

// Changed is called when the result of Cluster.Migrations may have changed. It does not
// block.
func (n *Node) Changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run takes part in migrations until ctx ends: it serves other nodes on l, which they reach
// at address, and reconciles after each Changed. A migration that is under way when ctx
// ends continues in libvirt; the next agent takes it over.
func (n *Node) Run(ctx context.Context, l net.Listener, address string) {
	n.address = address
	n.removeSockets()
	n.wg.Go(func() { n.serve(ctx, l) })
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for ctx.Err() == nil {
		n.reconcile(ctx)
		select {
		case <-n.wake:
		case <-ctx.Done():
		}
	}
	n.wg.Wait()
}

// reconcile passes each listed migration to its side, and starts sides for new ones.
func (n *Node) reconcile(ctx context.Context) {
	all, complete := n.cfg.Cluster.Migrations()
	n.mu.Lock()
	first := complete && !n.synced
	n.synced = complete || n.synced
	seen := map[string]bool{}
	for _, m := range all {
		state := migration.StateOf(m)
		target := state.TargetNode == n.cfg.Node
		if target == (state.SourceNode == n.cfg.Node) {
			continue // neither or both: not a migration of this node
		}
		uid := string(m.UID)
		switch s := n.sides[uid]; {
		case s != nil && s.target == target:
			seen[uid] = true
			s.setMigration(m)
		case s == nil && n.unfinished(m, target, all):
			seen[uid] = true
			n.startSide(ctx, m, target)
		}
	}
	for uid, s := range n.sides {
		if !seen[uid] {
			s.setMissing()
		}
	}
	n.mu.Unlock()
	if first {
		n.wg.Go(func() { n.removeDepartures(ctx, seen) })
		n.cfg.VMs.Changed("", "") // it was MigrationUnknown for all VMs
	}
}

// unfinished reports whether a migration needs a side here. The caller holds the lock.
func (n *Node) unfinished(m *Migration, target bool, all []*Migration) bool {
	return !m.Final() || target && (!finalTargetState(migration.StateOf(m).TargetState) || n.lookOnce(m, all))
}

// lookOnce reports whether a copy of a failed migration may be left here: the controller has reported
// this side's state because the node was fenced, and this agent has not looked yet. A guest that it
// guards, or that another migration has brought here, is not that copy: all has to be complete. The
// caller holds the lock.
func (n *Node) lookOnce(m *Migration, all []*Migration) bool {
	if !n.synced || migration.StateOf(m).TargetFenced == "" || n.looked[string(m.UID)] {
		return false
	}
	n.looked[string(m.UID)] = true
	return n.cfg.VMs.Phase(grace.DomainName(m.Namespace, m.Spec.VMIName)) == "" && !slices.ContainsFunc(all, func(o *Migration) bool {
		return o.UID != m.UID && o.Namespace == m.Namespace && o.Spec.VMIName == m.Spec.VMIName &&
			migration.StateOf(o).TargetNode == n.cfg.Node && o.Status.Phase != kubevirt.MigrationFailed
	})
}

// finalTargetState reports whether a target has reached its last state.
func finalTargetState(state string) bool {
	return state == kubevirt.TargetRunning || state == kubevirt.TargetAbsent
}

// startSide starts a side. The caller holds the lock.
func (n *Node) startSide(ctx context.Context, m *Migration, target bool) {
	uid := string(m.UID)
	s := newSide(n, m, target)
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

// MigrationOf returns the state of a domain's migration for the rules of the grace period.
// It also returns the arrival if the domain is migrated to this node.
func (n *Node) MigrationOf(domain string) (state grace.Migration, a grace.Arrival) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sides {
		is, arrival := s.migrationOf(domain)
		if is != grace.MigrationNone {
			state = is
		}
		if arrival != (grace.Arrival{}) {
			a = arrival
		}
	}
	if state == grace.MigrationNone && !n.synced {
		state = grace.MigrationUnknown
	}
	return state, a
}

// Stopped is called when libvirt has stopped a domain for the last part of its migration.
// It does not block.
func (n *Node) Stopped(domain string, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sides {
		if !s.target && s.domain == domain {
			s.stopped(at)
		}
	}
}

// DomainChanged is called when the state of a domain's migration may have changed on this node. It
// does not block.
func (n *Node) DomainChanged(domain string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sides {
		if s.domain == domain {
			s.wakeUp()
		}
	}
}
