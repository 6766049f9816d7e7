package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// After a pause a lost connection is opened again. The pause doubles while that fails,
// with jitter.
const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 5 * time.Second
)

// Run keeps a connection for libvirt's events until ctx ends. Then it returns nil, even
// while libvirt hangs. An event without a name follows each connect, because libvirt does
// not repeat missed events. libvirt's event loop calls the sink: it must not block, nor
// ask libvirt. A missing libvirtd is normal.
func (d *Driver) Run(ctx context.Context, sink func(hypervisor.Event)) error {
	logged := false
	for pause := pauseMin; ctx.Err() == nil; pause = min(2*pause, pauseMax) {
		began := time.Now()
		worked, err := d.session(ctx, sink)
		if worked && time.Since(began) > pauseMax {
			pause = pauseMin
		}
		if ctx.Err() == nil && (worked || !logged) {
			d.log.Warn("no connection to libvirt; trying again until there is one", "uri", d.uri, "err", err)
			logged = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)): //nolint:gosec // jitter
		}
	}
	return nil
}

// session runs one event connection. worked is true if there was one.
func (d *Driver) session(ctx context.Context, sink func(hypervisor.Event)) (worked bool, err error) {
	var s *session // may still be written to where ctx has ended first
	opened := make(chan error)
	started := d.calls.start(func() {
		is, err := d.openSession(func(e hypervisor.Event) {
			if ctx.Err() == nil {
				sink(e)
			}
		})
		s = is
		select {
		case opened <- err:
		case <-ctx.Done(): // it hung for too long
			if err == nil {
				is.close()
			}
		}
	})
	if !started {
		return false, errClosed
	}
	if err := answered(ctx, opened); err != nil {
		return false, err
	}
	d.log.Info("connected to libvirt", "uri", d.uri)
	d.up.Store(true)
	defer d.up.Store(false)
	defer d.calls.start(s.close)
	d.calls.start(func() { _ = d.requests.warm(ctx) }) // the first request reports an error
	sink(hypervisor.Event{})
	select {
	case <-ctx.Done():
		return true, ctx.Err()
	case reason := <-s.lost:
		return true, fmt.Errorf("%w: the connection was lost: %s", hypervisor.ErrUnavailable, closeReason(reason))
	}
}

// session is an event connection.
type session struct {
	conn *libvirt.Connect
	ids  []int                           // of the registered callbacks
	lost chan libvirt.ConnectCloseReason // of the connection
	sink func(hypervisor.Event)
	life lifecycle // used by the event loop only
}

func (d *Driver) openSession(sink func(hypervisor.Event)) (*session, error) {
	conn, err := d.connect()
	if err != nil {
		return nil, err
	}
	s := &session{
		conn: conn, lost: make(chan libvirt.ConnectCloseReason, 1), sink: sink,
		life: lifecycle{asked: map[string]grace.End{}},
	}
	if err := s.register(); err != nil {
		s.close()
		return nil, fmt.Errorf("register for libvirt's events: %w", plain(err))
	}
	// The last call on this connection: see pool for why.
	err = conn.SetKeepAlive(d.keepalive, keepaliveCount)
	if err != nil && !errors.Is(err, libvirt.ERR_NO_SUPPORT) && !errors.Is(err, libvirt.ERR_OK) {
		s.close()
		return nil, fmt.Errorf("keepalive of %s: %w", d.uri, plain(err))
	}
	return s, nil
}

// register adds the callbacks. They run one after the other in libvirt's event loop,
// which every connection needs.
func (s *session) register() error {
	err := s.conn.RegisterCloseCallback(func(_ *libvirt.Connect, reason libvirt.ConnectCloseReason) {
		s.lost <- reason // once
	})
	if err != nil {
		return err
	}
	add := func(id int, failed error) {
		if err = cmp.Or(err, failed); failed == nil {
			s.ids = append(s.ids, id)
		}
	}
	look := func(dom *libvirt.Domain) { s.sink(eventOf(dom)) }
	add(s.conn.DomainEventLifecycleRegister(nil, func(_ *libvirt.Connect, dom *libvirt.Domain, e *libvirt.DomainEventLifecycle) {
		is := eventOf(dom)
		is.End, is.Stopped = s.life.end(is.UUID, e.Event, e.Detail), stoppedAt(e)
		s.sink(is)
	}))
	add(s.conn.DomainEventAgentLifecycleRegister(nil, func(_ *libvirt.Connect, dom *libvirt.Domain, _ *libvirt.DomainEventAgentLifecycle) {
		look(dom)
	}))
	// An edited grace period counts until the shutdown starts.
	add(s.conn.DomainEventMetadataChangeRegister(nil, func(_ *libvirt.Connect, dom *libvirt.Domain, _ *libvirt.DomainEventMetadataChange) {
		look(dom)
	}))
	// The devices of a VM decide whether it can be migrated.
	add(s.conn.DomainEventDeviceAddedRegister(nil, func(_ *libvirt.Connect, dom *libvirt.Domain, _ *libvirt.DomainEventDeviceAdded) {
		look(dom)
	}))
	add(s.conn.DomainEventDeviceRemovedRegister(nil, func(_ *libvirt.Connect, dom *libvirt.Domain, _ *libvirt.DomainEventDeviceRemoved) {
		look(dom)
	}))
	return err
}

// stoppedAt returns the current time if a guest was stopped to send the rest of it. A
// suspend while it is sent counts, too (qemuProcessHandleStop).
func stoppedAt(e *libvirt.DomainEventLifecycle) time.Time {
	if e.Event == libvirt.DOMAIN_EVENT_SUSPENDED && libvirt.DomainEventSuspendedDetailType(e.Detail) == libvirt.DOMAIN_EVENT_SUSPENDED_MIGRATED {
		return time.Now()
	}
	return time.Time{}
}

// eventOf returns an event about a domain. Both calls are local, so libvirt has no reason
// to fail. Without a name the event would mean that anything may have changed.
func eventOf(dom *libvirt.Domain) hypervisor.Event {
	name, _ := dom.GetName()
	uuid, _ := dom.GetUUIDString()
	return hypervisor.Event{Name: name, UUID: uuid}
}

func closeReason(r libvirt.ConnectCloseReason) string {
	switch r {
	case libvirt.CONNECT_CLOSE_REASON_EOF:
		return "libvirtd ended"
	case libvirt.CONNECT_CLOSE_REASON_KEEPALIVE:
		return "libvirtd is silent"
	default:
		return "an error"
	}
}

// close may hang as long as libvirtd does. Its errors do not matter: over a broken
// connection libvirt has nothing to undo.
func (s *session) close() {
	for _, id := range s.ids {
		_ = s.conn.DomainEventDeregister(id)
	}
	_ = s.conn.UnregisterCloseCallback()
	_, _ = s.conn.Close()
}
