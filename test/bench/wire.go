package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// wire is a port before a server's. It lets everything through, TLS included,
// and counts what the server sends.
type wire struct {
	address  string // host:port
	received atomic.Int64
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func (b *bench) wire(server string) *wire {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	w := &wire{address: l.Addr().String(), listener: l}
	w.wg.Go(func() { w.serve(server) })
	b.Cleanup(w.close)
	return w
}

func (w *wire) serve(address string) {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", address)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, client, server)
		w.mu.Unlock()
		w.wg.Go(func() {
			defer server.Close()
			_, _ = io.Copy(server, client) // until either closes
		})
		w.wg.Go(func() {
			defer client.Close()
			_, _ = io.Copy(io.MultiWriter(client, counter{&w.received}), server)
		})
	}
}

func (w *wire) close() {
	_ = w.listener.Close()
	w.mu.Lock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
