package libvirt

import (
	"context"
	"time"

	"libvirt.org/go/libvirt"
)

// prepareTimeout is how long a hint waits for libvirt.
const prepareTimeout = time.Second

// connection is one that the pool holds, or has lent to a call.
type connection struct {
	*libvirt.Connect
	expiry   *time.Timer     // while it is idle
	prepared *libvirt.Domain // nil, or one that was looked up before it is needed
}

// Prepare looks a domain up for the request that follows at once. It is a hint: it
// changes nothing, does not block and does not fail.
func (d *Driver) Prepare(name string) { d.calls.start(func() { d.requests.prepare(name) }) }

// prepare looks a domain up on an idle connection, if there is one: the request is one
// question to libvirt then instead of two. libvirt takes that for the UUID that was
// found, whoever has the name by then (remote_protocol.x, remote_nonnull_domain).
func (p *pool) prepare(name string) {
	p.mu.Lock()
	idle := len(p.idle) > 0
	p.mu.Unlock()
	if !idle {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), prepareTimeout)
	defer cancel()
	_ = p.do(ctx, name, func(c *connection) (err error) { // the request itself will say what is wrong
		c.forget()
		c.prepared, err = c.LookupDomainByName(name)
		return err
	})
}

// find is the domain that was prepared, once, if that is the one that is meant, or
// looks for the name.
func (c *connection) find(name, uuid string) (*libvirt.Domain, error) {
	if c.prepared != nil {
		if is, err := c.prepared.GetUUIDString(); err == nil && is == uuid {
			dom := c.prepared
			c.prepared = nil
			return dom, nil
		}
	}
	return c.LookupDomainByName(name)
}

// forget: a domain holds its connection open.
func (c *connection) forget() {
	if c.prepared != nil {
		_ = c.prepared.Free() // gives memory back, no more
	}
	c.prepared = nil
}
