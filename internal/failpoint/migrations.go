//go:build failpoint

package failpoint

import (
	"context"
	"strings"

	"github.com/vmgrace/vmgrace/internal/nodemigration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Migrations puts points before and after the steps of a live migration at which a
// test kills an agent.
func (p Points) Migrations(c nodemigration.Config) nodemigration.Config {
	c.Sender = senders{c.Sender, p.points}
	c.Hypervisor = migrators{c.Hypervisor, p.points}
	c.Cluster = migrations{c.Cluster, p.points}
	c.VMs = movers{c.VMs, p.points}
	return c
}

type senders struct {
	nodemigration.Sender
	*points
}

func (s senders) Migrate(ctx context.Context, o hypervisor.Outgoing) error {
	defer s.around("migration-send")()
	return s.Sender.Migrate(ctx, o)
}

type migrators struct {
	nodemigration.Hypervisor
	*points
}

func (m migrators) Resume(ctx context.Context, name string, i grace.Instance) error {
	defer m.around("migration-resume")()
	return m.Hypervisor.Resume(ctx, name, i)
}

type migrations struct {
	nodemigration.Cluster
	*points
}

// Tell's points have the words that are told, without those of the progress.
func (m migrations) Tell(ctx context.Context, of *nodemigration.Migration, t nodemigration.Told) error {
	words := strings.Join([]string{string(t.Phase), t.SourceState, t.TargetState}, "")
	if words == "" {
		return m.Cluster.Tell(ctx, of, t)
	}
	defer m.around("migration-tell-" + words)()
	return m.Cluster.Tell(ctx, of, t)
}

type movers struct {
	nodemigration.VMs
	*points
}

func (m movers) Moved(domain, uuid string) {
	defer m.around("migration-moved")()
	m.VMs.Moved(domain, uuid)
}
