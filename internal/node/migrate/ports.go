package migrate

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Migration is a live migration as read from the API server. It is read-only.
type Migration = kubevirt.VirtualMachineInstanceMigration

// Cluster reads and updates migrations in the API server.
type Cluster interface {
	// Migrations returns those with a side on this node, from a cache. complete is false
	// until the cache has been filled.
	Migrations() (all []*Migration, complete bool)
	// UpdateStatus writes the fields that are not empty. A phase that is not empty replaces
	// the phase of m, and fails if the object has changed since m was read. The timestamps
	// of the phase, of the start and of the resume are set with them.
	UpdateStatus(ctx context.Context, m *Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) error
	// Gone asks the API server whether the migration no longer exists.
	Gone(ctx context.Context, m *Migration) (bool, error)
	// Event sends a warning Event about the VM of m. It does not block.
	Event(m *Migration, reason, message string)
}

// Sender sends domains to other hosts. A call returns when its context ends; the
// hypervisor's job continues.
type Sender interface {
	// Migrate returns when the hypervisor's job is over. An error says nothing about
	// where the guest is.
	Migrate(ctx context.Context, o hypervisor.Outgoing) error
	// Progress fails with hypervisor.ErrState without a running job.
	Progress(ctx context.Context, name string, i grace.Instance) (hypervisor.Progress, error)
	// Abort may return nil without having an effect.
	Abort(ctx context.Context, name string, i grace.Instance) error
	// Pause stops the guest while its migration continues. It succeeds if the guest is
	// stopped already. If the migration fails, the hypervisor resumes the guest.
	Pause(ctx context.Context, name string, i grace.Instance) error
}

// Hypervisor manages the domains of this host. A call returns when its context ends.
type Hypervisor interface {
	// Look returns the state of a domain on this host.
	Look(ctx context.Context, name string) (hypervisor.Stay, grace.Instance, error)
	// Resume resumes a domain. The caller makes sure that it runs nowhere else.
	Resume(ctx context.Context, name string, i grace.Instance) error
	// Remove destroys a domain. It succeeds if there is none.
	Remove(ctx context.Context, name string, i grace.Instance) error
	// Left reports whether the hypervisor has recorded that an ended instance was
	// migrated away; false without such a record.
	Left(ctx context.Context, name string, i grace.Instance) (bool, error)
}

// Kind is how the guests of one kind are moved: by libvirt of the node, or by their launchers.
type Kind struct {
	Sender
	Hypervisor
}

// Launchers connects VMs whose process is in their launcher pod with this agent. Such a guest is
// sent as QEMU's own stream, which the agents relay and do not understand.
type Launchers interface {
	// Claims reports whether the domain's process is, or will be, in its launcher pod.
	Claims(domain string) bool
	// Listen makes the socket in the launcher directory through which the domain's launcher
	// connects its QEMU, in place of a former one. Close removes it.
	Listen(domain string) (net.Listener, error)
	// Receive makes the launcher connect a QEMU that waits for a guest with that socket. It
	// returns when the launcher has answered.
	Receive(ctx context.Context, domain string) error
	// Machine describes the machine of the domain's QEMU, and what of this host's CPU a guest of
	// it depends on. Only equal machines of two nodes can have the same guest. It is "" while
	// that is not known.
	Machine(domain string) string
}

// Process is a handle of a process, as a pidfd. Done is closed when the process ends.
type Process interface {
	Done() <-chan struct{}
	// Signal sends a signal to the process, and to no other.
	Signal(s unix.Signal) error
	Close() error
}

// VMs is the part of the agent that guards VMs.
type VMs interface {
	// Phase returns the phase of the domain's record, "" without one.
	Phase(domain string) grace.Phase
	// HeldFor returns how long the domain's shutdown has been held, 0 while it is not.
	HeldFor(domain string) time.Duration
	// LauncherReady reports whether the launcher pod with this UID runs and has registered.
	LauncherReady(namespace, name, pod string) bool
	// Former returns the instance in the domain's record when this agent started. It has no
	// process if it is of another boot. It is zero without a record.
	Former(domain string) grace.Instance
	// Moved reports that an instance has ended because it was migrated away.
	Moved(domain, uuid string)
	// Changed reports that Node.MigrationOf may have changed; for all VMs if both are "".
	Changed(namespace, name string)
}

// Meter updates metrics. Its methods do not block.
type Meter interface {
	// TunnelRefused counts a rejected connection or a rejected part of a migration.
	TunnelRefused(reason string)
	// Downtime observes the downtime of a migrated guest, once per migration.
	Downtime(d time.Duration)
}
