package libvirt

import (
	"context"
	"errors"
	"slices"
	"time"

	"libvirt.org/go/libvirt"
)

const (
	// expectPatience is how long a look-up ahead may wait for those before it.
	expectPatience = 2 * time.Second
	// maxExpected bounds what a connection holds of domains that were expected
	// and never asked.
	maxExpected = 1024
)

// Expect looks the domain with this name and UUID up on a connection for
// requests, so that a request need not. Where one has it already that costs
// next to nothing. It does not block, and nothing depends on it: what was
// looked up is lost with its connection.
func (d *Driver) Expect(name, uuid string) {
	if d.requests.expects(name, uuid) {
		return
	}
	d.calls.start(func() {
		if err := d.expect(name, uuid); err != nil {
			d.log.Debug("cannot look a domain up ahead of its request", "domain", name, "err", err)
		}
	})
}

// expect looks up one domain at a time, so that at most one connection hangs
// for nothing, and no connection is opened only to be closed again, with what
// was looked up on it.
func (d *Driver) expect(name, uuid string) error {
	select {
	case d.expecting <- struct{}{}:
		defer func() { <-d.expecting }()
	case <-time.After(expectPatience):
		return errors.New("an earlier look-up hangs in libvirt")
	}
	// No bound of our own: the token is free again when the call has returned.
	return d.requests.on(context.Background(), name, func(ln *line) error { return ln.expect(name, uuid) })
}

// expects tells whether a connection that no call uses expects the domain.
func (l *lane) expects(name, uuid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.lines, func(ln *line) bool { return !ln.busy && isOf(ln.expected[name], uuid) })
}

func (ln *line) expect(name, uuid string) error {
	if isOf(ln.expected[name], uuid) {
		return nil
	}
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
	if isOf(dom, uuid) {
		return dom, nil
	}
	ln.free(dom)
	return ln.conn.LookupDomainByName(name)
}

// isOf asks nobody: a handle knows its domain's UUID.
func isOf(dom *libvirt.Domain, uuid string) bool {
	if dom == nil {
		return false
	}
	is, err := dom.GetUUIDString()
	return err == nil && is == uuid
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
