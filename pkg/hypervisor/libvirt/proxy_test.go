//go:build !unit

package libvirt

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// proxy is between driver and libvirtd, and knows libvirt's frames. It counts the calls
// that wait for their reply, lets chosen ones hang, and can stop or cut everything.
type proxy struct {
	path, server string

	mu       sync.Mutex
	listener net.Listener
	conns    map[*proxied]bool
	hold     func(frame []byte) bool // calls that are held back
	silent   bool                    // everything is held back
	down     bool                    // cut
	opened   int
	worst    int // calls at once on one connection
	held     int
	wg       sync.WaitGroup
}

// proxied is one connection through the proxy.
type proxied struct {
	client, server net.Conn
	calls          int // that wait for their reply
}

// The frame header (virnetprotocol.x): length, program, version, procedure,
// type, serial, status; 4 bytes each.
const (
	headerSize    = 28
	remoteProgram = 0x20008086
	typeCall      = 0
	typeReply     = 1
)

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	p := &proxy{path: filepath.Join(t.TempDir(), "sock"), server: server, conns: map[*proxied]bool{}}
	p.mend(t)
	t.Cleanup(func() { p.cut(t); p.wg.Wait() })
	return p
}

func (p *proxy) uri() string { return "qemu+unix:///system?socket=" + p.path }

// cut ends all connections and accepts no more.
func (p *proxy) cut(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	_ = p.listener.Close() // a second time, at the end of the test
	for c := range p.conns {
		c.close()
		delete(p.conns, c)
	}
}

// mend accepts connections (again).
func (p *proxy) mend(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.silent, p.down, p.hold = l, false, false, nil
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.take(client)
		}
	})
}

func (p *proxy) take(client net.Conn) {
	server, err := net.Dial("unix", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &proxied{client: client, server: server}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down { // the cut came while it was accepted
		c.close()
		return
	}
	p.conns[c] = true
	p.opened++
	p.wg.Go(func() { p.pump(c, client, server, typeCall, +1) })
	p.wg.Go(func() { p.pump(c, server, client, typeReply, -1) })
}

func (c *proxied) close() { _ = c.client.Close(); _ = c.server.Close() }

// pump forwards the frames of one direction and counts those of a kind.
func (p *proxy) pump(c *proxied, from, to net.Conn, kind uint32, count int) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.silent {
			return // libvirtd has given up; the silence goes on until the cut
		}
		c.close()
		delete(p.conns, c)
	}()
	for {
		frame, err := readFrame(from)
		if err != nil {
			return
		}
		if !p.passes(c, frame, kind, count) {
			continue
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

func (p *proxy) passes(c *proxied, frame []byte, kind uint32, count int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	counted := binary.BigEndian.Uint32(frame[4:]) == remoteProgram && binary.BigEndian.Uint32(frame[16:]) == kind
	if counted {
		c.calls += count
		p.worst = max(p.worst, c.calls)
	}
	if p.silent || counted && kind == typeCall && p.hold != nil && p.hold(frame) {
		p.held++
		return false
	}
	return true
}

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < headerSize || n > 64<<20 {
		return nil, io.ErrUnexpectedEOF
	}
	frame := make([]byte, n)
	copy(frame, size[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// holdAbout lets every call hang that names one of the domains.
func (p *proxy) holdAbout(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = func(frame []byte) bool {
		for _, name := range names {
			if strings.Contains(string(frame[headerSize:]), name) {
				return true
			}
		}
		return false
	}
}

// silence makes everything hang, keepalives too, even on new connections.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// stats returns the connections open now, opened ever, most calls at once on one, and the
// number of frames that hang.
func (p *proxy) stats() (open, opened, worst, held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns), p.opened, p.worst, p.held
}
