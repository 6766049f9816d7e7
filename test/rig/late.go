//go:build !unit

package rig

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Late delays the events of watches, so that a program's cache is behind. The zero value
// delays nothing.
type Late struct{ now atomic.Pointer[lateness] }

type lateness struct {
	resource string
	by       time.Duration
}

// By delays from now on what watches of the resource say, "" for those of all.
func (l *Late) By(by time.Duration, resource string) { l.now.Store(&lateness{resource, by}) }

// Response is the ModifyResponse of a proxy.
func (l *Late) Response(r *http.Response) error {
	if q := r.Request.URL.Query().Get("watch"); q != "true" && q != "1" {
		return nil
	}
	b := &lateBody{from: r.Body, chunks: make(chan lateChunk, 1<<10), closed: make(chan struct{})}
	go b.read(func() time.Duration {
		if now := l.now.Load(); now != nil && strings.HasSuffix(r.Request.URL.Path, now.resource) {
			return now.by
		}
		return 0
	})
	r.Body = b
	return nil
}

type lateChunk struct {
	text []byte
	due  time.Time
	err  error
}

type lateBody struct {
	from   io.ReadCloser
	chunks chan lateChunk
	closed chan struct{}
	rest   []byte
	err    error
}

func (b *lateBody) read(by func() time.Duration) {
	buf := make([]byte, 1<<16)
	for {
		n, err := b.from.Read(buf)
		c := lateChunk{append([]byte(nil), buf[:n]...), time.Now().Add(by()), err}
		select {
		case b.chunks <- c:
		case <-b.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

func (b *lateBody) Read(into []byte) (int, error) {
	for len(b.rest) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		select {
		case c := <-b.chunks:
			select {
			case <-time.After(time.Until(c.due)):
			case <-b.closed:
				return 0, io.ErrClosedPipe
			}
			b.rest, b.err = c.text, c.err
		case <-b.closed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(into, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *lateBody) Close() error {
	close(b.closed)
	return b.from.Close()
}
