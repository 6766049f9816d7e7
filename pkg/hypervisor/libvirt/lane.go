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
	// idleTime is how long a connection that nobody uses stays open: libvirtd
	// pings each every 5 s, which wakes the agent.
	idleTime = 15 * time.Second
	// openPause is how long a call waits for a connection before it opens one:
	// most calls take a millisecond. Behind one that hangs, everybody waits so
	// long.
	openPause = 5 * time.Millisecond
)

var errClosed = fmt.Errorf("%w: the driver is closed", hypervisor.ErrUnavailable)

// lane is a set of connections for one kind of call. A connection carries one
// call at a time and no keepalives of ours: libvirt's client library (seen with
// 9.0) crashes the process where a second thread sends something while a call
// waits for its reply. It looks like CVE-2024-4418: a callback is left behind
// that points into the first thread's stack.
type lane struct {
	name       string
	keep       int // connections kept open when idle
	idle       time.Duration
	connect    func() (*libvirt.Connect, error)
	disconnect func(*libvirt.Connect)
	start      func(func()) bool

	slots chan struct{} // one per call that libvirt may have at once
	freed chan struct{} // a line was given back

	mu     sync.Mutex
	closed bool
	lines  []*line
	turns  map[string]*turn
}

// line is a connection, or the attempt to open one.
type line struct {
	conn *libvirt.Connect // nil until it is open
	busy bool             // a call uses it; guarded by the lane's mu
	uses int              // tells an idle timer whether the line was used since
	// expected holds domains that were looked up ahead, by name. Only the call
	// that uses the line touches it.
	expected map[string]*libvirt.Domain
}

// turn makes calls about one domain follow each other.
type turn struct {
	token   chan struct{}
	waiting int
}

func (d *Driver) newLane(name string, most, keep int) *lane {
	return &lane{
		name: name, keep: keep, idle: idleTime,
		connect: d.connect, disconnect: d.disconnect, start: d.calls.start,
		slots: make(chan struct{}, most), freed: make(chan struct{}, 1), turns: map[string]*turn{},
	}
}

// do makes a call about a domain on a connection, see on.
func (l *lane) do(ctx context.Context, domain string, call func(*libvirt.Connect) error) error {
	return l.on(ctx, domain, func(ln *line) error { return call(ln.conn) })
}

// on makes a call about a domain. It returns when ctx ends, with an error that
// wraps ctx's, although the call goes on until libvirt lets it return: then
// nothing that the call writes may be read. Until it has returned, it keeps
// its slot and further calls about that domain wait.
func (l *lane) on(ctx context.Context, domain string, call func(*line) error) error {
	leave, err := l.enter(ctx, domain)
	if err != nil {
		return err
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		leave()
		return fmt.Errorf("all connections for %s are busy: %w", l.name, ctx.Err())
	}
	done := make(chan error, 1)
	started := l.start(func() {
		err := l.with(domain, call)
		<-l.slots
		leave()
		done <- err
	})
	if !started {
		<-l.slots
		leave()
		return errClosed
	}
	err, late := first(ctx, done)
	if late != nil {
		return late
	}
	return err
}

// enter waits for the calls about the same domain that came before.
func (l *lane) enter(ctx context.Context, domain string) (leave func(), err error) {
	l.mu.Lock()
	t := l.turns[domain]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		l.turns[domain] = t
	}
	t.waiting++
	l.mu.Unlock()
	gone := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(l.turns, domain)
		}
	}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, fmt.Errorf("an earlier call for this domain still hangs in libvirt: %w", ctx.Err())
	}
}

// with makes the call on a connection that works.
func (l *lane) with(domain string, call func(*line) error) error {
	ln, err := l.take(domain)
	if err != nil {
		return err
	}
	defer l.release(ln)
	if err := call(ln); err != nil {
		if !alive(ln.conn) {
			return fmt.Errorf("%w: the connection broke: %w", hypervisor.ErrUnavailable, plain(err))
		}
		return err
	}
	return nil
}

// take returns a line with a live connection that no other call uses, the one
// that expects the domain if there is one.
func (l *lane) take(domain string) (*line, error) {
	wait := time.NewTimer(openPause)
	defer wait.Stop()
	for {
		ln, none, err := l.unused(domain)
		switch {
		case err != nil:
			return nil, err
		case none:
			return l.open()
		case ln == nil:
			select {
			case <-l.freed:
			case <-wait.C:
				return l.open()
			}
		case alive(ln.conn):
			return ln, nil
		default:
			l.release(ln) // libvirtd was restarted: try another line
		}
	}
}

// unused takes a line that no call uses, nil if there is none; none: there are
// no lines at all.
func (l *lane) unused(domain string) (ln *line, none bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false, errClosed
	}
	for _, idle := range l.lines {
		if !idle.busy && (ln == nil || idle.expected[domain] != nil) {
			ln = idle
		}
	}
	if ln != nil {
		ln.busy = true
		ln.uses++
	}
	return ln, len(l.lines) == 0, nil
}

// open makes a new line. There are as many slots as lines may be.
func (l *lane) open() (*line, error) {
	ln := &line{busy: true, uses: 1}
	l.mu.Lock()
	l.lines = append(l.lines, ln)
	l.mu.Unlock()
	var err error
	if ln.conn, err = l.connect(); err != nil {
		l.release(ln)
		return nil, fmt.Errorf("%w: %w", hypervisor.ErrUnavailable, err)
	}
	return ln, nil
}

// release gives a line back, or closes it where it is broken.
func (l *lane) release(ln *line) {
	works := ln.conn != nil && alive(ln.conn)
	l.mu.Lock()
	ln.busy = false
	kept := works && !l.closed
	if kept {
		uses := ln.uses
		time.AfterFunc(l.idle, func() { l.retire(ln, uses) })
	} else {
		l.drop(ln)
	}
	l.mu.Unlock()
	select {
	case l.freed <- struct{}{}:
	default:
	}
	if !kept && ln.conn != nil {
		l.hangUp(ln)
	}
}

// hangUp closes the connection of a line that was dropped.
func (l *lane) hangUp(ln *line) {
	ln.forget() // each handle keeps the connection open
	l.disconnect(ln.conn)
}

func (l *lane) drop(ln *line) {
	l.lines = slices.DeleteFunc(l.lines, func(other *line) bool { return other == ln })
}

// retire closes a line that was not used since uses.
func (l *lane) retire(ln *line, uses int) {
	l.mu.Lock()
	unused := !ln.busy && ln.uses == uses && slices.Contains(l.lines, ln) && len(l.lines) > l.keep
	if unused {
		l.drop(ln)
	}
	l.mu.Unlock()
	if unused && !l.start(func() { l.hangUp(ln) }) {
		l.hangUp(ln) // Close came in between
	}
}

// warm opens a connection now, so that the first call need not.
func (l *lane) warm(ctx context.Context) error {
	return l.do(ctx, "", func(*libvirt.Connect) error { return nil })
}

// close closes what is idle; the rest follows as its calls return.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, ln := range slices.Clone(l.lines) {
		if !ln.busy {
			l.drop(ln)
			l.start(func() { l.hangUp(ln) })
		}
	}
}
