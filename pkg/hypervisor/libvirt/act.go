package libvirt

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// Ask presses the power button, or makes the guest agent shut down. A hung agent holds
// the call for up to a minute, but not the caller.
func (d *Driver) Ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error {
	pool, ask := d.requests, press
	if m == grace.ModeAgent {
		pool, ask = d.agents, askAgent
	}
	err := d.with(ctx, pool, name, i, func(dom *libvirt.Domain) error { return orOff(dom, ask(dom)) })
	return failed("ask by "+string(m), name, err)
}

func press(dom *libvirt.Domain) error {
	return dom.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
}

// askAgent thaws what a backup has frozen: a frozen guest's agent refuses all else. It does so
// only after a refusal, because a thaw runs the guest's hooks.
func askAgent(dom *libvirt.Domain) error {
	err := plain(dom.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_GUEST_AGENT))
	var refused *hypervisor.Refusal
	if errors.As(err, &refused) && dom.FSThaw(nil, 0) == nil {
		err = plain(dom.ShutdownFlags(libvirt.DOMAIN_SHUTDOWN_GUEST_AGENT))
	}
	return err
}

// Resume resumes a paused domain and wakes a suspended one. It leaves a running one as it
// is. It refuses one that is paused for another reason with ErrState: an I/O error or a
// migration has to be over first.
func (d *Driver) Resume(ctx context.Context, name string, i grace.Instance) error {
	err := d.with(ctx, d.requests, name, i, func(dom *libvirt.Domain) error {
		switch power, by, err := powerNow(dom); {
		case err != nil:
			return err
		case power == grace.PowerOn:
			return nil
		case power == grace.PowerPaused:
			return dom.Resume()
		case power == grace.PowerSuspended:
			return dom.PMWakeup(0)
		default:
			return fmt.Errorf("%w: it is %s %s", hypervisor.ErrState, power, by)
		}
	})
	return failed("resume", name, err)
}

// Destroy is virDomainDestroyFlags: SIGTERM, and SIGKILL after 10 s. It can
// take 40 s and can fail with the domain already dead.
func (d *Driver) Destroy(ctx context.Context, name string, i grace.Instance) error {
	err := d.with(ctx, d.destroys, name, i, func(dom *libvirt.Domain) error {
		return orOff(dom, dom.DestroyFlags(libvirt.DOMAIN_DESTROY_DEFAULT))
	})
	return failed("destroy", name, err)
}

// with does something to a domain if it still is this instance, checked right before.
func (d *Driver) with(ctx context.Context, p *pool, name string, i grace.Instance, do func(*libvirt.Domain) error) error {
	err := p.find(ctx, name, func(dom *libvirt.Domain) error {
		if err := ctx.Err(); err != nil {
			return err // the caller has given up while it waited for a connection
		}
		uuid, err := dom.GetUUIDString()
		if err != nil {
			return err
		}
		if uuid != i.UUID {
			return fmt.Errorf("%w: its UUID is %s", hypervisor.ErrOtherInstance, uuid)
		}
		if err := d.same(name, i); err != nil {
			return err
		}
		return do(dom)
	})
	return d.absent(err, i)
}

// orOff explains why a domain's state does not allow something. It asks for the state
// only afterwards: mostly the state allows it, and a request must not wait for that.
func orOff(dom *libvirt.Domain, err error) error {
	if errors.Is(err, hypervisor.ErrState) || errors.Is(err, libvirt.ERR_OPERATION_INVALID) {
		if _, _, stateErr := powerNow(dom); errors.Is(stateErr, hypervisor.ErrNotFound) {
			return stateErr
		}
	}
	return err
}

// powerNow returns the domain's power, and by what it is paused. It fails with ErrNotFound if
// the domain does not run.
func powerNow(dom *libvirt.Domain) (power grace.Power, by string, err error) {
	state, reason, err := dom.GetState()
	if err != nil {
		return grace.PowerUnknown, "", plain(err)
	}
	power, running := powerOf(state, reason)
	if !running {
		return grace.PowerUnknown, "", errOff
	}
	return power, pausedBy(state, reason), nil
}

// same checks the process of an instance whose UUID is the domain's. In doubt
// it is another instance.
func (d *Driver) same(name string, i grace.Instance) error {
	gone := false
	if i.PID != 0 {
		err := process.Check(i.PID, i.Start)
		if gone = errors.Is(err, process.ErrGone); !gone {
			return err
		}
	}
	run, err := d.run.look(name)
	switch {
	case err == nil && run.live() && run.instance() != i:
		return fmt.Errorf("%w: its process is %d", hypervisor.ErrOtherInstance, run.pid)
	case gone:
		return fmt.Errorf("%w: its process %d has ended", hypervisor.ErrNotFound, i.PID)
	default:
		return nil
	}
}

// absent corrects libvirt's answer that there is no such domain: that is true only if its
// process has ended.
func (d *Driver) absent(err error, i grace.Instance) error {
	if errors.Is(err, hypervisor.ErrNotFound) && i.PID != 0 && !errors.Is(process.Check(i.PID, i.Start), process.ErrGone) {
		return fmt.Errorf("%w: libvirt does not know the domain, but its process %d runs", hypervisor.ErrUnavailable, i.PID)
	}
	return err
}
