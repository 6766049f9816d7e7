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

// askPatience is how long libvirt is waited for where the run directory
// already knows the domain: libvirt locks a domain, and the list of all, for
// as long as it takes to kill one.
const askPatience = 5 * time.Second

// errOff: libvirt knows the domain, and it does not run.
var errOff = fmt.Errorf("%w: it is defined but off", hypervisor.ErrNotFound)

// view is what libvirtd says of a running domain.
type view struct {
	name, uuid            string
	power                 hypervisor.Power
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
		asking, cancel = context.WithTimeout(ctx, askPatience)
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
		return run.domain(hypervisor.PowerUnknown), nil
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
			dom.Power = hypervisor.PowerEnding
		}
	}
	return dom
}

// query asks libvirtd about one domain.
func (d *Driver) query(ctx context.Context, name string) (view, error) {
	var seen view
	err := d.queries.do(ctx, name, func(c *libvirt.Connect) error {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return plain(err)
		}
		defer dom.Free() //nolint:errcheck // gives memory back, no more
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

// List joins the run directory with libvirtd's list. Where one of the two
// cannot be read the other one is all there is; the error is ErrUnavailable
// if neither can.
func (d *Driver) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	names, runErr := d.run.names()
	asking, cancel := ctx, func() {}
	if runErr == nil {
		asking, cancel = context.WithTimeout(ctx, askPatience)
	}
	defer cancel()
	seen, err := d.queryAll(asking, ours)
	if err != nil && runErr != nil {
		return nil, failed("list", "domains", fmt.Errorf("%w: %w; %w", hypervisor.ErrUnavailable, err, runErr))
	}
	if err != nil {
		d.log.Debug("libvirt cannot list its domains; its run directory does", "err", err)
	}
	all := make([]hypervisor.Domain, 0, len(seen))
	for _, v := range seen {
		all = append(all, join(v, d.tryRun(v.name)))
	}
	for _, name := range names {
		if _, listed := seen[name]; listed || !ours(name) {
			continue
		}
		// Not listed means off if libvirt was asked, unless the process runs.
		if run := d.tryRun(name); run.live() || err != nil && run.uuid != "" && !run.gone {
			all = append(all, run.domain(hypervisor.PowerUnknown))
		}
	}
	return all, nil
}

// tryRun is the run directory's entry, the zero entry if it cannot be had.
func (d *Driver) tryRun(name string) entry {
	run, err := d.run.again(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Debug("a domain of libvirt's run directory cannot be read", "err", err)
	}
	return run
}

// queryAll asks libvirtd about all running domains that are ours.
func (d *Driver) queryAll(ctx context.Context, ours func(name string) bool) (map[string]view, error) {
	var seen map[string]view
	err := d.queries.do(ctx, "", func(c *libvirt.Connect) (err error) {
		seen, err = d.seeAll(c, ours)
		return err
	})
	if err != nil {
		return nil, err // seen may still be written to
	}
	return seen, nil
}

// seeAll learns from a list which domains run and will not come back by
// themselves, and asks only about the others.
func (d *Driver) seeAll(c *libvirt.Connect, ours func(name string) bool) (map[string]view, error) {
	if d.run.path == "" {
		return active(c, 0, ours, d.see) // the XML of each is needed
	}
	usual, err := active(c, libvirt.CONNECT_LIST_DOMAINS_RUNNING|libvirt.CONNECT_LIST_DOMAINS_TRANSIENT, ours, listed)
	if err != nil {
		return nil, err
	}
	return active(c, 0, ours, func(dom *libvirt.Domain) (view, error) {
		v, err := listed(dom)
		if err == nil && usual[v.name] == v {
			return v, nil
		}
		return d.see(dom)
	})
}

// active sees the domains of ours that are active and on a list of libvirt's.
func active(c *libvirt.Connect, list libvirt.ConnectListAllDomainsFlags, ours func(name string) bool, see func(*libvirt.Domain) (view, error)) (map[string]view, error) {
	doms, err := c.ListAllDomains(libvirt.CONNECT_LIST_DOMAINS_ACTIVE | list)
	if err != nil {
		return nil, plain(err)
	}
	defer func() {
		for i := range doms {
			_ = doms[i].Free() // gives memory back, no more
		}
	}()
	seen := make(map[string]view, len(doms))
	for i := range doms {
		name, err := doms[i].GetName()
		if err != nil {
			return nil, plain(err)
		}
		if !ours(name) {
			continue
		}
		v, err := see(&doms[i])
		if errors.Is(err, hypervisor.ErrNotFound) {
			continue // ended in the meantime
		}
		if err != nil {
			return nil, err
		}
		seen[name] = v
	}
	return seen, nil
}

// listed is what a list says of a domain that runs. It asks nobody.
func listed(dom *libvirt.Domain) (v view, err error) {
	if v.name, err = dom.GetName(); err != nil {
		return v, plain(err)
	}
	if v.uuid, err = dom.GetUUIDString(); err != nil {
		return v, plain(err)
	}
	v.power = hypervisor.PowerOn
	return v, nil
}
