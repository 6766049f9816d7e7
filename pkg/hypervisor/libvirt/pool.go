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
	// idleTime is how long an unused connection stays open: less than
	// the 5 s after which libvirtd pings it, which wakes the agent.
	idleTime = 4 * time.Second
	// openDelay is how long a call waits for a connection before it opens one:
	// most calls take a millisecond.
	openDelay = 5 * time.Millisecond
)

var errClosed = fmt.Errorf("%w: the driver is closed", hypervisor.ErrUnavailable)

// pool holds connections for one kind of call. A connection carries one call at
// a time and no keepalives of ours: libvirt's client library (seen with 9.0)
// crashes the process where a second thread sends something while a call waits
// for its reply. It looks like CVE-2024-4418: a callback is left behind that
// points into the first thread's stack.
type pool struct {
	driver   *Driver
	name     string
	keep     int // connections that stay open when idle
	idleTime time.Duration

	slots chan struct{} // one per call that libvirt may have at once
	freed chan struct{} // a connection was given back

	mu      sync.Mutex
	closed  bool
	open    int           // connections, with those that are being opened
	idle    []*connection // the one used last at the end
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

// do makes a call about a domain. It returns when ctx ends, with an error that
// wraps ctx's, although the call goes on until libvirt lets it return: then
// nothing that the call writes may be read. Until it has returned, it keeps
// its slot, and further calls about that domain wait.
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

// find does something with a domain. One that was prepared is taken where its UUID
// is the one that is meant; with "" whichever has the name now is found.
func (p *pool) find(ctx context.Context, name, uuid string, do func(*libvirt.Domain) error) error {
	return p.do(ctx, name, func(c *connection) error {
		dom, err := c.find(name, uuid)
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

// with makes the call on a connection that works.
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

// take returns a connection that works and that no other call uses.
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

// pop takes the idle connection that was used last, nil if there is none; open
// is how many connections there are.
func (p *pool) pop() (c *connection, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		c, p.idle = p.idle[last], p.idle[:last]
		c.expiry.Stop()
	}
	return c, p.open
}

// dial opens a connection. There are as many slots as connections may be.
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

// release gives a connection back, or closes it where it is broken.
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
		p.end(c)
	}
}

func (p *pool) end(c *connection) {
	c.forget()
	_, _ = c.Close() // of a connection that no call uses any more
}

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
		p.end(c)
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

// close closes what is idle; the rest follows as its calls return.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for len(p.idle) > 0 {
		c := p.idle[0]
		p.remove(0)
		p.driver.calls.start(func() { p.end(c) })
	}
}
