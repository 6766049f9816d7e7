package main

import (
	"io"
	"sync/atomic"
)

// wire is a port before a server's. It lets everything through, TLS included,
// and counts what the server sends.
type wire struct {
	address  string // host:port
	received atomic.Int64
}

func (b *bench) wire(server string) *wire {
	b.Helper()
	w := &wire{}
	w.address = b.relay("tcp", "127.0.0.1:0", server, through, func(to io.Writer, from io.Reader) error {
		return through(io.MultiWriter(to, w), from)
	})
	return w
}

// Write implements io.Writer: it counts.
func (w *wire) Write(p []byte) (int, error) {
	w.received.Add(int64(len(p)))
	return len(p), nil
}
