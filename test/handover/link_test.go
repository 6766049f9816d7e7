//go:build !unit

package handover

import (
	"encoding/binary"
	"io"
	"net"
	"sync"

	"github.com/vmgrace/vmgrace/test/node"
)

// way is a direction on a link: there is from the side that connects, back is the other
// one.
type way int

const (
	there way = iota
	back
)

// link forwards connections. Held data arrives once the link passes data again, as on a
// network that loses every packet for a while: neither side gets an error.
type link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	freed *sync.Cond
	held  [2]bool
	ended bool
	conns []net.Conn
}

// newLink starts a link from the address at to the address to.
func newLink(t node.T, at, to string) *link {
	t.Helper()
	l := &link{to: to}
	l.freed = sync.NewCond(&l.mu)
	var err error
	if l.listener, err = net.Listen("tcp", at); err != nil {
		t.Fatalf("link: %v", err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(func() { l.close(); serving.Wait() })
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

// hold holds all data on these ways, and on both ways if none is given.
func (l *link) hold(ways ...way) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = [2]bool{len(ways) == 0, len(ways) == 0}
	for _, w := range ways {
		l.held[w] = true
	}
}

func (l *link) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = [2]bool{}
	l.freed.Broadcast()
}

func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.freed.Broadcast()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

// open waits until a way passes data. It returns false if the link has ended.
func (l *link) open(w way) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.held[w] && !l.ended {
		l.freed.Wait()
	}
	return !l.ended
}

func (l *link) serve(c net.Conn) {
	defer c.Close()
	if !l.open(there) {
		return
	}
	s, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.conns = append(l.conns, c, s)
	l.mu.Unlock()
	both(c, s, func(w way, from io.Reader, to io.Writer) {
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				if !l.open(w) {
					return
				}
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// both carries data both ways until one way ends. Then it closes both connections.
func both(c, s net.Conn, carry func(w way, from io.Reader, to io.Writer)) {
	var copying sync.WaitGroup
	for w, pair := range map[way][2]net.Conn{there: {c, s}, back: {s, c}} {
		copying.Go(func() {
			carry(w, pair[0], pair[1])
			_ = c.Close()
			_ = s.Close()
		})
	}
	copying.Wait()
}

// The frames of libvirt's RPC by which the tests follow a migration, and what a shim and its
// QEMU's monitor say then. The first three of libvirt pass on the target's wire, the last one on
// the source's.
const (
	prepare   = "prepare"   // the source's libvirt, or the shim, asks the target's to receive a guest
	finish    = "finish"    // the source's libvirt, or QEMU, has sent all
	finished  = "finished"  // the target's says that all is there
	performed = "performed" // the source's libvirt says that it is over; the target's shim lets the guest go on
)

// frames names the frames by their procedure of the program 0x20008086, as in
// remote_protocol.x, and by their type.
var frames = map[[2]uint32]string{{304, 0}: prepare, {306, 0}: finish, {306, 1}: finished, {305, 1}: performed}

// moments are those of a migration at which a test wants something to happen.
type moments struct {
	mu sync.Mutex
	at map[string]func() bool
}

// wire forwards what a node's agent and its libvirtd say to each other, frame by frame.
type wire struct {
	moments *moments
	to      string
}

func newWire(t node.T, m *moments, at, to string) {
	t.Helper()
	w := &wire{moments: m, to: to}
	serveUnix(t, at, w.serve)
}

// serveUnix serves the connections to a unix socket until the test ends. serve returns once its
// connection is closed.
func serveUnix(t node.T, at string, serve func(net.Conn)) {
	t.Helper()
	listener, err := net.Listen("unix", at)
	if err != nil {
		t.Fatalf("wire: %v", err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			serving.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
}

// when calls do once, before a wire forwards the next frame of this kind. If do returns
// false, the wire drops the frame and closes the connection.
func (m *moments) when(frame string, do func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[frame] = do
}

func (m *moments) take(frame string) func() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	do := m.at[frame]
	delete(m.at, frame)
	return do
}

func (w *wire) serve(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("unix", w.to)
	if err != nil {
		return
	}
	both(c, s, func(_ way, from io.Reader, to io.Writer) {
		for {
			head := make([]byte, 28)
			if _, err := io.ReadFull(from, head); err != nil {
				return
			}
			frame := make([]byte, max(28, binary.BigEndian.Uint32(head)))
			copy(frame, head)
			if _, err := io.ReadFull(from, frame[28:]); err != nil {
				return
			}
			kind := [2]uint32{binary.BigEndian.Uint32(frame[12:]), binary.BigEndian.Uint32(frame[16:])}
			if binary.BigEndian.Uint32(frame[4:]) == 0x20008086 {
				if do := w.moments.take(frames[kind]); do != nil && !do() {
					return
				}
			}
			if _, err := to.Write(frame); err != nil {
				return
			}
		}
	})
}
