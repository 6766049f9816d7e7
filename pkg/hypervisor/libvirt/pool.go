package libvirt

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

const (
	// idleTime is how long an unused connection stays open. It is less than the 5 s after
	// which libvirtd pings it, which wakes the agent.
	idleTime = 4 * time.Second
	// openDelay is how long a call waits for a connection before it opens one:
	// most calls take a millisecond.
	openDelay = 5 * time.Millisecond
)

var errClosed = fmt.Errorf("%w: the driver is closed", hypervisor.ErrUnavailable)

// pool holds connections for one kind of call. A connection carries one call at a time
// and no keepalives of ours: libvirt's client library (seen with 9.0) crashes the process
// if a second thread sends something while a call waits for its reply. This looks like
// CVE-2024-4418: a callback stays behind that points into the first thread's stack.
type pool struct {
	driver   *Driver
	name     string
	keep     int // connections that stay open when idle
	idleTime time.Duration

	slots chan struct{} // one per call that libvirt may have at once
	freed chan struct{} // a connection was given back

	mu      sync.Mutex
	closed  bool
	open    int           // connections, including those being opened
	idle    []*connection // the last used one at the end
	calling map[string]chan struct{}
}

func (d *Driver) newPool(name string, most, keep int) *pool {
	p := &pool{
		driver: d, name: name, keep: keep, idleTime: idleTime,
		slots: make(chan struct{}, most), freed: make(chan struct{}, 1), calling: map[string]chan struct{}{},
	}
	d.pools = append(d.pools, p)
	return p
}

// connection is a connection in the pool, or lent to a call.
type connection struct {
	*libvirt.Connect
	expiry *time.Timer // while it is idle
}

// do makes a call about a domain. When ctx ends, it returns an error that wraps ctx's,
// although the call goes on until libvirt lets it return. Then the caller may not read
// what the call writes. Until the call has returned, it keeps its slot, and further calls
// about that domain wait.
func (p *pool) do(ctx context.Context, domain string, call func(*connection) error) error {
	returned, err := p.enter(ctx, domain)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	started := p.driver.calls.start(func() {
		err := p.with(call)
		returned()
		done <- err
	})
	if !started {
		returned()
		return errClosed
	}
	return answered(ctx, done)
}

// find does something with the domain that has the name now.
func (p *pool) find(ctx context.Context, name string, do func(*libvirt.Domain) error) error {
	return p.do(ctx, name, func(c *connection) error {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return plain(err)
		}
		defer dom.Free() //nolint:errcheck // gives memory back, no more
		return plain(do(dom))
	})
}

// enter waits until no other call about the domain is under way, and for a slot.
func (p *pool) enter(ctx context.Context, domain string) (returned func(), err error) {
	mine := make(chan struct{})
	for {
		p.mu.Lock()
		other, busy := p.calling[domain]
		if !busy {
			p.calling[domain] = mine
		}
		p.mu.Unlock()
		if !busy {
			break
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("an earlier call for this domain still hangs in libvirt: %w", ctx.Err())
		}
	}
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calling, domain)
		close(mine)
	}
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("all connections for %s are busy: %w", p.name, ctx.Err())
	}
}

// with makes the call on a working connection.
func (p *pool) with(call func(*connection) error) error {
	c, err := p.take()
	if err != nil {
		return err
	}
	defer p.release(c)
	if err := call(c); err != nil {
		if !alive(c.Connect) {
			return fmt.Errorf("%w: the connection broke: %w", hypervisor.ErrUnavailable, plain(err))
		}
		return err
	}
	return nil
}

// take returns a working connection that no other call uses.
func (p *pool) take() (*connection, error) {
	wait := time.NewTimer(openDelay)
	defer wait.Stop()
	for {
		c, open := p.pop()
		switch {
		case c != nil && alive(c.Connect):
			return c, nil
		case c != nil:
			p.release(c) // libvirtd was restarted: try another one
		case open == 0:
			return p.dial()
		default:
			select {
			case <-p.freed:
			case <-wait.C:
				return p.dial()
			}
		}
	}
}

// pop takes the idle connection that was used last, nil if there is none. open is the
// number of connections.
func (p *pool) pop() (c *connection, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		c, p.idle = p.idle[last], p.idle[:last]
		c.expiry.Stop()
	}
	return c, p.open
}

// dial opens a connection. The slots limit the number of connections.
func (p *pool) dial() (*connection, error) {
	p.count(+1)
	c, err := p.driver.connect()
	if err != nil {
		p.count(-1)
		return nil, fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
	return &connection{Connect: c}, nil
}

func (p *pool) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open += n
}

// release gives a connection back, or closes it if it is broken.
func (p *pool) release(c *connection) {
	works := alive(c.Connect)
	p.mu.Lock()
	kept := works && !p.closed
	if kept {
		c.expiry = time.AfterFunc(p.idleTime, func() { p.expire(c) })
		p.idle = append(p.idle, c)
	} else {
		p.open--
	}
	p.mu.Unlock()
	select {
	case p.freed <- struct{}{}:
	default:
	}
	if !kept {
		c.end()
	}
}

// end closes a connection that no call uses any more.
func (c *connection) end() { _, _ = c.Close() }

// expire closes a connection that was not used for idleTime.
func (p *pool) expire(c *connection) {
	p.mu.Lock()
	at := slices.Index(p.idle, c)
	unused := at >= 0 && p.open > p.keep
	if unused {
		p.remove(at)
	}
	p.mu.Unlock()
	if unused {
		c.end()
	}
}

func (p *pool) remove(at int) {
	p.idle[at].expiry.Stop()
	p.idle = slices.Delete(p.idle, at, at+1)
	p.open--
}

// warm opens a connection now, so that the first call need not.
func (p *pool) warm(ctx context.Context) error {
	return p.do(ctx, "", func(*connection) error { return nil })
}

// close closes idle connections; the others close as their calls return.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for len(p.idle) > 0 {
		c := p.idle[0]
		p.remove(0)
		p.driver.calls.start(c.end)
	}
}
