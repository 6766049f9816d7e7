package faults

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// wall is a proxy between the agent and libvirtd. While it is closed, it passes no call, on
// new connections neither. It passes keepalives, so that nobody takes libvirtd for dead.
type wall struct {
	path, server string

	mu       sync.Mutex
	closed   bool
	listener net.Listener
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

func newWall(t *testing.T, server, path string) *wall {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	w := &wall{path: path, server: server, listener: l, conns: map[net.Conn]bool{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close()
		w.cut()
		w.wg.Wait()
	})
	return w
}

func (w *wall) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// open makes the wall pass calls again and ends all connections, which loses their calls.
func (w *wall) open() {
	w.mu.Lock()
	w.closed = false
	w.mu.Unlock()
	w.cut()
}

func (w *wall) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}

func (w *wall) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", w.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		w.conns[client], w.conns[server] = true, true
		w.mu.Unlock()
		w.wg.Go(func() { w.pump(client, server) })
		w.wg.Go(func() { w.pump(server, client) })
	}
}

// pump passes frames on (virnetprotocol.x). A frame is a length that counts itself, the
// program, and the rest.
func (w *wall) pump(from, to net.Conn) {
	defer func() {
		_, _ = from.Close(), to.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, from)
	}()
	const keepaliveProgram = 0x6b656570
	for {
		var head [8]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}
		size := binary.BigEndian.Uint32(head[:])
		if size < uint32(len(head)) || size > 64<<20 {
			return
		}
		frame := append(head[:], make([]byte, int(size)-len(head))...)
		if _, err := io.ReadFull(from, frame[len(head):]); err != nil {
			return
		}
		w.mu.Lock()
		pass := !w.closed || binary.BigEndian.Uint32(head[4:]) == keepaliveProgram
		w.mu.Unlock()
		if !pass {
			continue
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}
