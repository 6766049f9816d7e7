package libvirt

import (
	"context"
	"errors"
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// List joins libvirtd's list with its run directory. If one of them fails it uses the
// other alone. The error is ErrUnavailable if both fail.
func (d *Driver) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	names, runErr := d.run.names()
	asking, cancel := ctx, func() {}
	if runErr == nil {
		asking, cancel = context.WithTimeout(ctx, queryTimeout)
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
		run, _ := d.run.look(v.Name) // nothing is known of it where that fails
		all = append(all, join(v, run))
	}
	for _, name := range names {
		if _, listed := seen[name]; listed || !ours(name) {
			continue
		}
		// Not listed means off if libvirt was asked, unless the process runs.
		if run, _ := d.run.look(name); run.live() || err != nil && run.uuid != "" && !run.gone {
			all = append(all, run.domain(grace.PowerUnknown))
		}
	}
	return all, nil
}

// queryAll asks libvirtd about all running domains that are ours.
func (d *Driver) queryAll(ctx context.Context, ours func(name string) bool) (map[string]hypervisor.Domain, error) {
	var seen map[string]hypervisor.Domain
	err := d.queries.do(ctx, "", func(c *connection) (err error) {
		seen, err = d.seeAll(c.Connect, ours)
		return err
	})
	if err != nil {
		return nil, err // seen may still be written to
	}
	return seen, nil
}

// seeAll learns from a list which domains run and will not come back by themselves, and
// asks only about the others. Asking for 200 domains, one by one, takes more processor
// time than all else that an idle agent does.
func (d *Driver) seeAll(c *libvirt.Connect, ours func(name string) bool) (map[string]hypervisor.Domain, error) {
	if d.run.path == "" {
		return active(c, 0, ours, d.see) // the XML of each is needed
	}
	usual, err := active(c, libvirt.CONNECT_LIST_DOMAINS_RUNNING|libvirt.CONNECT_LIST_DOMAINS_TRANSIENT, ours, listed)
	if err != nil {
		return nil, err
	}
	return active(c, 0, ours, func(dom *libvirt.Domain) (hypervisor.Domain, error) {
		v, err := listed(dom)
		if err == nil && usual[v.Name] == v {
			return v, nil
		}
		return d.see(dom)
	})
}

// active returns our domains that are active and on a list of libvirt's.
func active(c *libvirt.Connect, list libvirt.ConnectListAllDomainsFlags, ours func(name string) bool, see func(*libvirt.Domain) (hypervisor.Domain, error)) (map[string]hypervisor.Domain, error) {
	doms, err := c.ListAllDomains(libvirt.CONNECT_LIST_DOMAINS_ACTIVE | list)
	if err != nil {
		return nil, plain(err)
	}
	defer func() {
		for i := range doms {
			_ = doms[i].Free() // gives memory back, no more
		}
	}()
	seen := make(map[string]hypervisor.Domain, len(doms))
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

// listed returns what a list says of a running domain. It makes no call.
func listed(dom *libvirt.Domain) (hypervisor.Domain, error) {
	is := hypervisor.Domain{Domain: grace.Domain{Power: grace.PowerOn}}
	var err error
	if is.Name, err = dom.GetName(); err != nil {
		return is, plain(err)
	}
	is.Instance.UUID, err = dom.GetUUIDString()
	return is, plain(err)
}
