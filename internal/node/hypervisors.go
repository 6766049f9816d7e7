package node

import (
	"context"
	"errors"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/inpod"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
)

// hypervisors joins the two kinds of VMs: those of the node's libvirt, and those whose
// process is in their launcher pod. It implements hypervisor.Driver. Neither kind waits
// for the other.
type hypervisors struct {
	launchers *inpod.Driver
	libvirt   *libvirt.Driver // nil where there is none
}

func (o *Options) hypervisors(log *slog.Logger) hypervisors {
	h := hypervisors{launchers: inpod.New()}
	if o.LibvirtURI != "" {
		h.libvirt = libvirt.New(libvirt.Config{URI: o.LibvirtURI, Logger: log})
	}
	return h
}

// directory makes the driver find the VMs of launcher directories.
func (h hypervisors) directory(find func(namespace, name, pod string) inpod.Directory) func(namespace, name, pod string) agent.Launcher {
	return func(namespace, name, pod string) agent.Launcher {
		return h.launchers.Directory(grace.DomainName(namespace, name), pod, find(namespace, name, pod))
	}
}

// check reports whether the needed parts of libvirt are present.
func (h hypervisors) check(context.Context) error {
	if h.libvirt == nil {
		return nil
	}
	return libvirt.CheckLibrary()
}

// run calls sink with changes until ctx ends.
func (h hypervisors) run(ctx context.Context, sink func(hypervisor.Event)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.launchers.Run(ctx, sink) })
	if h.libvirt != nil {
		group.Go(func() error { return h.libvirt.Run(ctx, sink) })
	}
	return group.Wait()
}

func (h hypervisors) close() error {
	err := h.launchers.Close()
	if h.libvirt != nil {
		err = errors.Join(err, h.libvirt.Close())
	}
	return err
}

// of returns the driver of an instance.
func (h hypervisors) of(i grace.Instance) hypervisor.Driver {
	if h.libvirt == nil || hypervisor.InLauncher(i) {
		return h.launchers
	}
	return h.libvirt
}

// List implements hypervisor.Driver. It fails if libvirt's list fails; the other kind has
// its own events.
func (h hypervisors) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	domains, err := h.launchers.List(ctx, ours)
	if err != nil || h.libvirt == nil {
		return domains, err
	}
	seen := make(map[string]bool, len(domains))
	for _, d := range domains {
		seen[d.Name] = true
	}
	others, err := h.libvirt.List(ctx, func(name string) bool { return !seen[name] && ours(name) })
	if err != nil {
		return nil, err
	}
	return append(domains, others...), nil
}

// Get implements hypervisor.Driver. If a VM's launcher asks the guest itself, libvirt is
// not asked, even before the VM's process is there.
func (h hypervisors) Get(ctx context.Context, name string) (hypervisor.Domain, error) {
	d, err := h.launchers.Get(ctx, name)
	if err == nil || h.libvirt == nil || h.launchers.Claims(name) {
		return d, err
	}
	return h.libvirt.Get(ctx, name)
}

// Ask implements hypervisor.Driver.
func (h hypervisors) Ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error {
	return h.of(i).Ask(ctx, name, i, m)
}

// Resume implements hypervisor.Driver.
func (h hypervisors) Resume(ctx context.Context, name string, i grace.Instance) error {
	return h.of(i).Resume(ctx, name, i)
}

// Destroy implements hypervisor.Driver.
func (h hypervisors) Destroy(ctx context.Context, name string, i grace.Instance) error {
	return h.of(i).Destroy(ctx, name, i)
}

// Ended implements hypervisor.Driver.
func (h hypervisors) Ended(ctx context.Context, name string, i grace.Instance) (grace.End, error) {
	return h.of(i).Ended(ctx, name, i)
}
