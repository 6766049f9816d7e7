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

// queryTimeout is how long to wait for libvirt if the run directory already knows the
// domain. libvirt locks a domain, and the list of all, for as long as it takes to kill
// one.
const queryTimeout = 5 * time.Second

// errOff means that libvirt knows the domain, and it does not run.
var errOff = fmt.Errorf("%w: it is defined but off", hypervisor.ErrNotFound)

// Get joins the run directory with what libvirtd says, see hypervisor.Driver. The
// instance has PID 0 while its process cannot be identified: at its start, and after its
// end until libvirt has cleaned up.
func (d *Driver) Get(ctx context.Context, name string) (hypervisor.Domain, error) {
	run, runErr := d.run.look(name)
	asking, cancel := ctx, func() {}
	if run.live() {
		asking, cancel = context.WithTimeout(ctx, queryTimeout)
	}
	defer cancel()
	seen, err := d.query(asking, name)
	if err == nil && seen.Instance.UUID != run.uuid || errors.Is(err, hypervisor.ErrNotFound) {
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
		// libvirt may deny the domain, but the file is unreadable.
		return hypervisor.Domain{}, failed("look at", name, fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, runErr))
	}
}

// unavailable means that libvirt has not answered, for whatever reason.
func unavailable(err error) error {
	if err == nil || errors.Is(err, hypervisor.ErrNotFound) || errors.Is(err, hypervisor.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, plain(err))
}

// join takes the power from libvirtd, and the process from the run directory if that
// knows the domain.
func join(seen hypervisor.Domain, run entry) hypervisor.Domain {
	if run.uuid == seen.Instance.UUID {
		seen.Instance, seen.Agent, seen.Grace = run.instance(), run.agent, run.grace
		if run.gone {
			seen.Power = grace.PowerEnding
		}
	}
	return seen
}

// query asks libvirtd about one domain.
func (d *Driver) query(ctx context.Context, name string) (hypervisor.Domain, error) {
	var seen hypervisor.Domain
	err := d.queries.find(ctx, name, func(dom *libvirt.Domain) (err error) {
		seen, err = d.see(dom)
		return err
	})
	if err != nil {
		return hypervisor.Domain{}, err // seen may still be written to
	}
	return seen, nil
}

// see asks libvirtd what a domain does. Only the XML, on new versions of libvirt, takes
// the domain's job lock. libvirtd does not tell the process.
func (d *Driver) see(dom *libvirt.Domain) (hypervisor.Domain, error) {
	is, err := listed(dom)
	if err != nil {
		return is, err
	}
	if is.Power, is.Paused, err = powerNow(dom); err != nil {
		return is, err
	}
	if is.Persistent, err = dom.IsPersistent(); err != nil {
		return is, plain(err)
	}
	if is.Persistent {
		if is.Autostart, err = dom.GetAutostart(); err != nil {
			return is, plain(err)
		}
	}
	if d.run.path == "" {
		text, err := dom.GetXMLDesc(0)
		if err != nil {
			return is, plain(err)
		}
		s, err := parseStatus(strings.NewReader(text))
		is.Agent, is.Grace = s.agent, s.grace
		return is, err
	}
	return is, nil
}
