package node

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/kube"
	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// listenRetry is the interval of attempts to listen on a port that is in use.
const listenRetry = 5 * time.Second

// migrations is this node's part in live migrations.
type migrations struct {
	node     *node
	migrator *libvirt.Migrator // nil without libvirt
	watch    *kube.Migrations
	identity *migrate.Identity
	sides    *migrate.Node
	former   map[string]grace.Instance // instances in the records when this agent started
	allowed  tunnel.Agreement          // what a domain that arrives may have

	notListening atomic.Bool // the listener does not work
}

// off returns why no VM can be moved from or to this node, or "".
func (m *migrations) off() string {
	if m.notListening.Load() {
		return "this node's agent cannot listen on --migration-listen " + m.node.Migration.Listen
	}
	return ""
}

// takes reports whether VMs can be moved to this node.
func (m *migrations) takes() bool { return m.off() == "" && m.identity.Certificate() != nil }

// nodeLabel returns nil in a dry run. Where migrations are off it removes the label that a
// former agent has set.
func (n *node) nodeLabel() *kube.NodeLabel {
	switch {
	case n.DryRun:
		return nil
	case n.moves == nil:
		return kube.NewNodeLabel(n.vmis, nil)
	}
	return kube.NewNodeLabel(n.vmis, n.moves.takes)
}

// migrations returns nil if migrations are off, and in a dry run.
func (n *node) migrations(records []grace.Record, boot string) *migrations {
	if n.Migration.Listen == "" || n.DryRun {
		return nil
	}
	m := &migrations{node: n, former: map[string]grace.Instance{}, allowed: n.Migration.allowed(rootOf(nodeRoot, n.log))}
	for _, r := range records {
		i := r.Instance
		if r.BootID != boot {
			i = grace.Instance{UUID: i.UUID}
		}
		m.former[r.Domain()] = i
	}
	var byLibvirt migrate.Kind
	if n.driver.libvirt != nil {
		m.migrator = n.driver.libvirt.Migrator()
		byLibvirt = migrate.Kind{Sender: m.migrator, Hypervisor: m.migrator}
	}
	launchers := n.driver.launchers.Mover()
	m.watch = kube.NewMigrations(n.vmis, n.Migration.CANamespace, func() { m.sides.Changed() })
	m.identity = migrate.NewIdentity(n.NodeName, m.watch, n.log)
	m.sides = migrate.New(n.points.Migrations(migrate.Config{
		Node: n.NodeName, LibvirtSocket: libvirtSocket(n.LibvirtURI), SocketDir: filepath.Join(n.StateDir, "migration"),
		URI: n.Migration.uri, Allowed: m.allowed,
		Cluster: m.watch, Identity: m.identity, Launchers: launchers, Libvirt: byLibvirt, Launcher: migrate.Kind{Sender: launchers, Hypervisor: launchers}, VMs: m, Meter: n.meter,
		GoesDown: func() bool { return n.agent.GoesDown() },
		Open: func(pid int, start uint64) (migrate.Process, error) {
			p, err := process.Open(pid, start)
			if err != nil {
				return nil, err
			}
			return p, nil
		},
		Log: n.log,
	}))
	return m
}

// run takes part in migrations until ctx ends. Failures are retried and affect no VM.
func (m *migrations) run(ctx context.Context) error {
	l := m.listen(ctx)
	if l == nil {
		return nil
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { m.watch.Run(ctx) })
	running.Go(func() { m.identity.Run(ctx, func() { m.sides.Changed(); m.node.label.Changed() }) })
	m.sides.Run(ctx, l, m.address(l.Addr()))
	return nil
}

// listen retries until it succeeds. It returns nil if ctx ends.
func (m *migrations) listen(ctx context.Context) net.Listener {
	logged := false
	for {
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", m.node.Migration.Listen)
		m.notListening.Store(err != nil)
		if err == nil {
			return l
		}
		if !logged {
			logged = true
			m.node.log.Warn("no VM can be moved from or to this node: --migration-listen does not work; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenRetry):
		}
	}
}

// address is the listener's address for other nodes.
func (m *migrations) address(at net.Addr) string {
	_, port, _ := net.SplitHostPort(at.String()) // of a listener that works
	host, _, _ := net.SplitHostPort(m.node.Migration.Listen)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = ""
	}
	host = cmp.Or(m.node.Migration.Address, host, os.Getenv("POD_IP"), firstAddress())
	return net.JoinHostPort(host, port)
}

// firstAddress is the first global unicast address of this host, or "".
func firstAddress() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// libvirtSocket is where the libvirt of this URI listens.
func libvirtSocket(uri string) string {
	if u, err := url.Parse(uri); err == nil && u.Query().Get("socket") != "" {
		return u.Query().Get("socket")
	}
	const modular = "/run/libvirt/virtqemud-sock"
	if _, err := os.Stat(modular); err == nil {
		return modular
	}
	return "/run/libvirt/libvirt-sock"
}

// Phase implements transfer.VMs.
func (m *migrations) Phase(domain string) grace.Phase { return m.node.agent.Phase(domain) }

// HeldFor implements transfer.VMs.
func (m *migrations) HeldFor(domain string) time.Duration { return m.node.agent.HeldFor(domain) }

// LauncherReady implements transfer.VMs.
func (m *migrations) LauncherReady(namespace, name, pod string) bool {
	for _, p := range m.node.vmis.Pods(namespace, name) {
		if p.UID == pod && !p.Done && !p.Deleting {
			view, err := m.node.from.launcher(namespace, name, pod).Look()
			return err == nil && view.Registered && !view.Trigger
		}
	}
	return false
}

// Former implements transfer.VMs.
func (m *migrations) Former(domain string) grace.Instance { return m.former[domain] }

// Moved implements transfer.VMs.
func (m *migrations) Moved(domain, uuid string) {
	m.node.agent.DomainChanged(hypervisor.Event{Name: domain, UUID: uuid, End: grace.EndMoved})
}

// Changed implements transfer.VMs.
func (m *migrations) Changed(namespace, name string) { m.node.agent.ClusterChanged(namespace, name) }
