package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// queryTimeout is how long libvirt is waited for where the run directory
// already knows the domain: libvirt locks a domain, and the list of all, for
// as long as it takes to kill one.
const queryTimeout = 5 * time.Second

// errOff: libvirt knows the domain, and it does not run.
var errOff = fmt.Errorf("%w: it is defined but off", hypervisor.ErrNotFound)

// view is what libvirtd says of a running domain.
type view struct {
	name, uuid            string
	power                 grace.Power
	persistent, autostart bool
	status                status // only where there is no run directory
}

// Get joins the run directory with what libvirtd says, see
// hypervisor.Driver. While a process cannot be identified the instance has
// PID 0: at its start, and after its end until libvirt has cleaned up.
func (d *Driver) Get(ctx context.Context, name string) (hypervisor.Domain, error) {
	run, runErr := d.run.look(name)
	asking, cancel := ctx, func() {}
	if run.live() {
		asking, cancel = context.WithTimeout(ctx, queryTimeout)
	}
	defer cancel()
	seen, err := d.query(asking, name)
	if err == nil && seen.uuid != run.instance.UUID || errors.Is(err, hypervisor.ErrNotFound) {
		run, runErr = d.run.look(name) // it has changed between the two looks
	}
	known := runErr == nil
	switch {
	case err == nil:
		return join(seen, run), nil
	case known && !run.gone && (run.live() || !errors.Is(err, hypervisor.ErrNotFound)):
		return run.domain(grace.PowerUnknown), nil
	case known || errors.Is(runErr, fs.ErrNotExist):
		return hypervisor.Domain{}, failed("look at", name, unavailable(err))
	default:
		// libvirt may say that there is no such domain; the file says nothing.
		return hypervisor.Domain{}, failed("look at", name, fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, runErr))
	}
}

// unavailable: libvirt has not said what it knows, for whatever reason.
func unavailable(err error) error {
	if err == nil || errors.Is(err, hypervisor.ErrNotFound) || errors.Is(err, hypervisor.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, plain(err))
}

// join: libvirtd says what the domain does, the run directory which process
// it is, if it knows the domain.
func join(seen view, run entry) hypervisor.Domain {
	dom := hypervisor.Domain{
		Name: seen.name, Instance: grace.Instance{UUID: seen.uuid}, Power: seen.power,
		Agent: seen.status.agent, Grace: seen.status.grace,
		Persistent: seen.persistent, Autostart: seen.autostart,
	}
	if run.uuid == seen.uuid {
		dom.Instance, dom.Agent, dom.Grace = run.instance, run.agent, run.grace
		if run.gone {
			dom.Power = grace.PowerEnding
		}
	}
	return dom
}

// query asks libvirtd about one domain.
func (d *Driver) query(ctx context.Context, name string) (view, error) {
	var seen view
	err := d.queries.find(ctx, name, "", func(dom *libvirt.Domain) (err error) {
		seen, err = d.see(dom)
		return err
	})
	if err != nil {
		return view{}, err // seen may still be written to
	}
	return seen, nil
}

// see asks libvirtd what a domain does. None of these calls takes the
// domain's job lock, except for the XML on new versions of libvirt.
func (d *Driver) see(dom *libvirt.Domain) (v view, err error) {
	if v.name, err = dom.GetName(); err != nil {
		return v, plain(err)
	}
	if v.uuid, err = dom.GetUUIDString(); err != nil {
		return v, plain(err)
	}
	state, reason, err := dom.GetState()
	if err != nil {
		return v, plain(err)
	}
	var running bool
	if v.power, running = powerOf(state, reason); !running {
		return v, errOff
	}
	if v.persistent, err = dom.IsPersistent(); err != nil {
		return v, plain(err)
	}
	if v.persistent {
		if v.autostart, err = dom.GetAutostart(); err != nil {
			return v, plain(err)
		}
	}
	if d.run.path == "" {
		text, err := dom.GetXMLDesc(0)
		if err != nil {
			return v, plain(err)
		}
		v.status, err = parseStatus(strings.NewReader(text))
		return v, err
	}
	return v, nil
}
