package nodemigration

import (
	"context"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Migration is a live migration as the API server shows it. It is not written to.
type Migration = kubevirt.VirtualMachineInstanceMigration

// Cluster is what the API server knows of migrations.
type Cluster interface {
	// Migrations are those that this node has a side in, from memory. They are all
	// that there are, or not yet.
	Migrations() (all []*Migration, complete bool)
	// UpdateStatus writes the fields that are not empty. A phase, if there is one,
	// replaces the phase of m; it fails where the object has changed since m was read.
	// The timestamps of the phase, of the start and of the resume are set with them.
	UpdateStatus(ctx context.Context, m *Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) error
	// Gone tells whether the API server says that there is no such migration any
	// more.
	Gone(ctx context.Context, m *Migration) (bool, error)
	// Event tells people of the VM that moves. It does not block.
	Event(m *Migration, reason, message string)
}

// Sender sends domains to other hosts. Each call is bound by its context, but the
// hypervisor's own work goes on.
type Sender interface {
	// Migrate returns when the hypervisor says that it is over. An error says
	// nothing about either side.
	Migrate(ctx context.Context, o hypervisor.Outgoing) error
	// Progress fails with hypervisor.ErrState where nothing is under way.
	Progress(ctx context.Context, name string, i grace.Instance) (hypervisor.Progress, error)
	// Abort may have no effect, and return nil.
	Abort(ctx context.Context, name string, i grace.Instance) error
	// Pause stops the guest, whose migration goes on, and does not fail where it is
	// stopped already. Where it is not sent in the end, the hypervisor lets it run.
	Pause(ctx context.Context, name string, i grace.Instance) error
}

// Hypervisor has the domains of this host. Each call is bound by its context.
type Hypervisor interface {
	// Look says what a domain is on this host.
	Look(ctx context.Context, name string) (hypervisor.Stay, grace.Instance, error)
	// Resume lets it run: the caller knows that it runs nowhere else.
	Resume(ctx context.Context, name string, i grace.Instance) error
	// Remove ends it by force; what is not there is no error.
	Remove(ctx context.Context, name string, i grace.Instance) error
	// Left tells whether the hypervisor says that an instance which has ended here went
	// elsewhere. Where it does not say, it is false.
	Left(ctx context.Context, name string, i grace.Instance) (bool, error)
}

// Process is a process whose end is seen.
type Process interface {
	Done() <-chan struct{}
	Close() error
}

// VMs is what the agent's other half knows and has to know.
type VMs interface {
	// Phase is that of the domain's record, "" without one.
	Phase(domain string) grace.Phase
	// HeldFor is how long the domain's shutdown has been held, 0 while it is not.
	HeldFor(domain string) time.Duration
	// LauncherReady: the launcher pod with this UID runs and has registered.
	LauncherReady(namespace, name, pod string) bool
	// Former is the instance of the record that there was when this agent started:
	// without a process where that was of another boot, zero where there was none.
	Former(domain string) grace.Instance
	// Moved is told that an instance has ended here because it went elsewhere.
	Moved(domain, uuid string)
	// Changed is told that Standing may say something else now.
	Changed(namespace, name string)
}

// Meter counts. Its methods do not block.
type Meter interface {
	// TunnelRefused counts what a source sent and must not.
	TunnelRefused(reason string)
	// Downtime measures for how long a guest that has left stood still, once.
	Downtime(d time.Duration)
}
