package tunnel

import (
	"context"
	"errors"
	"io"
)

// Guard relays one incoming migration from its source to libvirt's socket on this node. It ends
// when either connection or ctx ends, a frame is refused, or the source does not go on. In the last
// two cases the error is a *Refusal. It closes both connections. No part of a refused frame is
// passed on.
func Guard(ctx context.Context, source, libvirt io.ReadWriteCloser, agreed Agreement) error {
	closeBoth := func() {
		_ = source.Close() // it may be closed already
		_ = libvirt.Close()
	}
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	m := newMachine(&agreed)
	defer m.idle.Stop()
	ends := make(chan error, 2)
	go func() { ends <- pass(libvirt, source, m.fromTarget) }()
	go func() { ends <- pass(source, libvirt, m.fromSource) }()
	var err error
	left := 2
	select {
	case err = <-ends: // the other error only says that the connection was closed
		left--
	case <-m.idle.C:
		err = refuse(ReasonIdle, "the source sends nothing more")
	}
	closeBoth()
	for range left {
		<-ends //nolint:errcheck // says that its connection was closed
	}
	return err
}

// pass relays frames of one direction until its end. It reuses its buffers: the memory
// does not grow with the guest.
func pass(from io.Reader, to io.Writer, look func(*frame) error) error {
	var in, out []byte
	for {
		f, err := readFrame(from, &in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := look(&f); err != nil {
			return err
		}
		if err := f.write(to, &out); err != nil {
			return err
		}
	}
}
