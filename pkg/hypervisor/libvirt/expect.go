package libvirt

import (
	"context"
	"time"

	"libvirt.org/go/libvirt"
)

const (
	// expectPatience is how long a look-up ahead may wait for a connection.
	expectPatience = 2 * time.Second
	// maxExpected bounds what a connection holds of domains that were expected
	// and never asked.
	maxExpected = 64
)

// Expect looks a domain up on a connection for requests, so that the request
// that follows need not. It does not block, and nothing depends on it.
func (d *Driver) Expect(name string) {
	d.calls.start(func() {
		ctx, cancel := context.WithTimeout(context.Background(), expectPatience)
		defer cancel()
		if err := d.requests.on(ctx, name, func(ln *line) error { return ln.expect(name) }); err != nil {
			d.log.Debug("cannot look a domain up ahead of its request", "domain", name, "err", err)
		}
	})
}

func (ln *line) expect(name string) error {
	dom, err := ln.conn.LookupDomainByName(name)
	if err != nil {
		return plain(err)
	}
	if ln.expected == nil || len(ln.expected) >= maxExpected {
		ln.forget()
		ln.expected = map[string]*libvirt.Domain{}
	}
	ln.free(ln.expected[name])
	ln.expected[name] = dom
	return nil
}

// domain gives the domain that was expected, if it is the one with this UUID,
// or looks it up. The caller frees it.
func (ln *line) domain(name, uuid string) (*libvirt.Domain, error) {
	dom := ln.expected[name]
	delete(ln.expected, name)
	if dom != nil {
		if is, err := dom.GetUUIDString(); err == nil && is == uuid {
			return dom, nil
		}
		ln.free(dom)
	}
	return ln.conn.LookupDomainByName(name)
}

func (ln *line) forget() {
	for _, dom := range ln.expected {
		ln.free(dom)
	}
	ln.expected = nil
}

func (ln *line) free(dom *libvirt.Domain) {
	if dom != nil {
		_ = dom.Free() // gives memory back, no more
	}
}
