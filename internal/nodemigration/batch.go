package nodemigration

import (
	"bufio"
	"net"
	"sync"
)

// batchSize is as much as libvirt puts into a frame of a migration.
const batchSize = 64 << 10

// batch is the connection below TLS. TLS has records of at most 16 KiB, and would make
// a system call or two for each: a guest's memory costs less in larger pieces.
type batch struct {
	net.Conn

	in *bufio.Reader // its user's: one reads at a time

	mu    sync.Mutex
	out   *bufio.Writer
	holds bool
}

func newBatch(c net.Conn) *batch {
	return &batch{Conn: c, in: bufio.NewReaderSize(c, batchSize), out: bufio.NewWriterSize(c, batchSize+batchSize/8)}
}

func (b *batch) Read(p []byte) (int, error) { return b.in.Read(p) } //nolint:wrapcheck // a net.Conn

// Write sends, but between hold and flush.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.out.Write(p)
	if err == nil && !b.holds {
		err = b.out.Flush()
	}
	return n, err //nolint:wrapcheck // a net.Conn
}

func (b *batch) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds = true
}

func (b *batch) flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds = false
	return b.out.Flush() //nolint:wrapcheck // a net.Conn
}
