package tunnel

import (
	"context"
	"errors"
	"io"
	"sync"
)

// Result is what is known of a migration when its connection has ended.
type Result struct {
	// Complete: libvirt has said that the whole domain is there. Without it nothing
	// is known: an answer may have been lost.
	Complete bool
	// Received counts the bytes of the source's frames.
	Received int64
}

// Guard passes one incoming migration from its source to libvirt's socket on this
// node, until either side ends, ctx ends, or the source sends what is refused,
// which is a *Refusal. Both connections are closed then; the rest of a frame is
// never passed on.
func Guard(ctx context.Context, source, libvirt io.ReadWriteCloser, agreed Agreement) (Result, error) {
	g := &guard{machine: newMachine(&agreed), source: source, libvirt: libvirt}
	stop := context.AfterFunc(ctx, g.close)
	defer stop()
	ends := make(chan error, 2)
	var both sync.WaitGroup
	both.Go(func() { ends <- g.pass(libvirt, source, g.machine.fromTarget) })
	both.Go(func() { ends <- g.pass(source, libvirt, g.countFromSource) })
	err := <-ends // the other one will only say that its connection was closed
	g.close()
	both.Wait()
	if ctx.Err() != nil && !isRefusal(err) {
		err = ctx.Err()
	}
	return Result{Complete: g.machine.complete, Received: g.received}, err
}

// guard is a machine between two connections.
type guard struct {
	mu       sync.Mutex // around machine
	machine  *machine
	received int64

	source, libvirt io.Closer
	once            sync.Once
}

func (g *guard) countFromSource(f *frame) error {
	g.received += headerSize + int64(len(f.body))
	return g.machine.fromSource(f)
}

// pass passes frames on until the end of one side. Its buffers are its own, so a
// migration costs little memory, however much of the guest's passes.
func (g *guard) pass(from io.Reader, to io.Writer, look func(*frame) error) error {
	var in, out []byte
	for {
		f, err := readFrame(from, &in)
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		g.mu.Lock()
		err = look(&f)
		g.mu.Unlock()
		if err != nil {
			return err
		}
		if err := f.write(to, &out); err != nil {
			return err
		}
	}
}

func isRefusal(err error) bool { _, is := errors.AsType[*Refusal](err); return is }

func (g *guard) close() {
	g.once.Do(func() {
		_ = g.source.Close() // a side that is gone is what this is for
		_ = g.libvirt.Close()
	})
}
