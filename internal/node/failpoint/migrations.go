//go:build failpoint

package failpoint

import (
	"context"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Migrations adds points before and after the steps of a live migration, at which a test
// kills an agent.
func (p Points) Migrations(c migrate.Config) migrate.Config {
	for _, k := range []*migrate.Kind{&c.Libvirt, &c.Launcher} {
		if k.Hypervisor != nil {
			*k = migrate.Kind{Sender: senders{k.Sender, p.points}, Hypervisor: migrators{k.Hypervisor, p.points}}
		}
	}
	c.Cluster = migrations{c.Cluster, p.points}
	c.VMs = movers{c.VMs, p.points}
	return c
}

type senders struct {
	migrate.Sender
	*points
}

func (s senders) Migrate(ctx context.Context, o hypervisor.Outgoing) error {
	defer s.around("migration-send")()
	return s.Sender.Migrate(ctx, o)
}

type migrators struct {
	migrate.Hypervisor
	*points
}

func (m migrators) Resume(ctx context.Context, name string, i grace.Instance) error {
	defer m.around("migration-resume")()
	return m.Hypervisor.Resume(ctx, name, i)
}

type migrations struct {
	migrate.Cluster
	*points
}

// UpdateStatus has points named after the written phase or state, and none for the
// progress.
func (m migrations) UpdateStatus(ctx context.Context, of *migrate.Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) error {
	if name := string(phase) + state.SourceState + state.TargetState; name != "" {
		defer m.around("migration-status-" + name)()
	}
	return m.Cluster.UpdateStatus(ctx, of, phase, state)
}

type movers struct {
	migrate.VMs
	*points
}

func (m movers) Moved(domain, uuid string) {
	defer m.around("migration-moved")()
	m.VMs.Moved(domain, uuid)
}
