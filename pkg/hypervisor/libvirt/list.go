package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// standsFor bounds how long libvirtd's last list stands for another. What its run
// directory does not show is whether a domain comes back by itself, which only a
// warning is made of.
const standsFor = 5 * time.Minute

// said is libvirtd's last list. libvirt writes a domain's status file at
// whatever a running domain does (qemuDomainSaveStatus), so there is no news
// where the run directory is as it was when libvirtd was asked. To ask takes a
// connection and two calls, which wake the agent a hundred times (measured;
// docs/performance.md).
type said struct {
	mu   sync.Mutex
	seen map[string]view // nil: nothing that counts
	pass int             // of the run directory, from before libvirtd was asked
	at   time.Time
}

func (s *said) put(seen map[string]view, pass int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.pass, s.at = seen, pass, time.Now()
}

// get is nil where libvirtd is to be asked.
func (s *said) get(pass int) map[string]view {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pass != pass || time.Since(s.at) >= standsFor {
		s.seen = nil
	}
	return s.seen
}

func (s *said) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// recall is what libvirtd would say of its domains, nil where it is to be asked:
// without a connection whose events are heard, and for a domain that it was not
// asked about or did not name.
func (d *Driver) recall(pass int, names []string, ours func(name string) bool) map[string]view {
	seen := d.said.get(pass)
	if !d.Up() {
		return nil
	}
	for _, name := range names {
		if _, known := seen[name]; !known && ours(name) {
			return nil
		}
	}
	return seen
}

// List joins the run directory with libvirtd's list. Where one of the two
// cannot be read the other one is all there is; the error is ErrUnavailable
// if neither can. While the run directory stays as it is libvirtd is not asked
// again.
func (d *Driver) List(ctx context.Context, ours func(name string) bool) ([]hypervisor.Domain, error) {
	names, pass, runErr := d.run.names()
	seen, err := d.known(ctx, pass, names, ours)
	if err != nil && runErr != nil {
		return nil, failed("list", "domains", fmt.Errorf("%w: %w; %w", hypervisor.ErrUnavailable, err, runErr))
	}
	if err != nil {
		d.log.Debug("libvirt cannot list its domains; its run directory does", "err", err)
	}
	all := make([]hypervisor.Domain, 0, len(seen))
	for _, v := range seen {
		if ours(v.name) {
			all = append(all, join(v, d.tryRun(v.name)))
		}
	}
	for _, name := range names {
		if _, listed := seen[name]; listed || !ours(name) {
			continue
		}
		// Not listed means off if libvirt was asked, unless the process runs.
		if run := d.tryRun(name); run.live() || err != nil && run.uuid != "" && !run.gone {
			all = append(all, run.domain(grace.PowerUnknown))
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

// known is what libvirtd says or has said. Where the run directory was read, pass
// is not 0, and libvirtd is not waited for long.
func (d *Driver) known(ctx context.Context, pass int, names []string, ours func(name string) bool) (map[string]view, error) {
	if seen := d.recall(pass, names, ours); seen != nil {
		return seen, nil
	}
	if pass == 0 {
		return d.queryAll(ctx, ours)
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	seen, err := d.queryAll(ctx, ours)
	if err == nil {
		d.said.put(seen, pass)
	}
	return seen, err
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
	v.power = grace.PowerOn
	return v, nil
}
