package main

import (
	"io"
	"net"
	"sync"
)

// pump forwards what one side of a connection sends, until either side closes.
type pump func(to io.Writer, from io.Reader) error

// through is a pump that changes nothing.
func through(to io.Writer, from io.Reader) error {
	_, err := io.Copy(to, from)
	return err
}

// relay is a socket in front of a server. It ends with the row.
type relay struct {
	requests, answers pump
	listener          net.Listener
	wg                sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

// relay listens on an address for a server of the same network. It returns the complete
// address.
func (b *bench) relay(network, address, server string, requests, answers pump) string {
	b.Helper()
	l, err := net.Listen(network, address)
	b.must(err)
	r := &relay{requests: requests, answers: answers, listener: l}
	r.wg.Go(func() { r.serve(network, server) })
	b.Cleanup(r.close)
	return l.Addr().String()
}

func (r *relay) serve(network, address string) {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // the listener is closed
		}
		server, err := net.Dial(network, address)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, client, server)
		r.mu.Unlock()
		r.wg.Go(func() {
			defer server.Close()
			_ = r.requests(server, client)
		})
		r.wg.Go(func() {
			defer client.Close()
			_ = r.answers(client, server)
		})
	}
}

func (r *relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}
