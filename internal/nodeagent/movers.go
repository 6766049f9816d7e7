package nodeagent

import (
	"context"

	"github.com/vmgrace/vmgrace/internal/transfer"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/inpod"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
)

// movers joins the two kinds of VMs for live migrations, as hypervisors does for shutdowns. It
// implements transfer.Sender and transfer.Hypervisor.
type movers struct {
	launchers *inpod.Mover
	libvirt   *libvirt.Migrator // nil where there is none
}

// mover is one of the two.
type mover struct {
	transfer.Sender
	transfer.Hypervisor
}

// of returns the mover of a domain: its launcher's if it says so, else libvirt's.
func (m movers) of(domain string) mover {
	if m.libvirt == nil || m.launchers.Claims(domain) {
		return mover{m.launchers, m.launchers}
	}
	return mover{m.libvirt, m.libvirt}
}

// ofInstance returns the mover of an instance.
func (m movers) ofInstance(i grace.Instance) mover {
	if m.libvirt == nil || hypervisor.InLauncher(i) {
		return mover{m.launchers, m.launchers}
	}
	return mover{m.libvirt, m.libvirt}
}

// Migrate implements transfer.Sender.
func (m movers) Migrate(ctx context.Context, o hypervisor.Outgoing) error {
	return m.ofInstance(o.Instance).Migrate(ctx, o) //nolint:wrapcheck // it says what was tried
}

// Progress implements transfer.Sender.
func (m movers) Progress(ctx context.Context, name string, i grace.Instance) (hypervisor.Progress, error) {
	return m.ofInstance(i).Progress(ctx, name, i) //nolint:wrapcheck // as above
}

// Abort implements transfer.Sender.
func (m movers) Abort(ctx context.Context, name string, i grace.Instance) error {
	return m.ofInstance(i).Abort(ctx, name, i) //nolint:wrapcheck // as above
}

// Pause implements transfer.Sender.
func (m movers) Pause(ctx context.Context, name string, i grace.Instance) error {
	return m.ofInstance(i).Pause(ctx, name, i) //nolint:wrapcheck // as above
}

// Look implements transfer.Hypervisor.
func (m movers) Look(ctx context.Context, name string) (hypervisor.Stay, grace.Instance, error) {
	return m.of(name).Look(ctx, name) //nolint:wrapcheck // as above
}

// Resume implements transfer.Hypervisor.
func (m movers) Resume(ctx context.Context, name string, i grace.Instance) error {
	return m.ofInstance(i).Resume(ctx, name, i) //nolint:wrapcheck // as above
}

// Remove implements transfer.Hypervisor.
func (m movers) Remove(ctx context.Context, name string, i grace.Instance) error {
	return m.ofInstance(i).Remove(ctx, name, i) //nolint:wrapcheck // as above
}

// Left implements transfer.Hypervisor.
func (m movers) Left(ctx context.Context, name string, i grace.Instance) (bool, error) {
	return m.ofInstance(i).Left(ctx, name, i) //nolint:wrapcheck // as above
}
