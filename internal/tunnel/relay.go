package tunnel

import (
	"context"
	"errors"
	"io"
)

// Guard passes one incoming migration from its source to libvirt's socket on this
// node, until either side ends, ctx ends, or the source sends what is refused,
// which is a *Refusal. Both connections are closed then; the rest of a frame is
// never passed on.
func Guard(ctx context.Context, source, libvirt io.ReadWriteCloser, agreed Agreement) error {
	closeBoth := func() {
		_ = source.Close() // a side that is gone is what this is for
		_ = libvirt.Close()
	}
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	m := newMachine(&agreed)
	ends := make(chan error, 2)
	go func() { ends <- pass(libvirt, source, m.fromTarget) }()
	go func() { ends <- pass(source, libvirt, m.fromSource) }()
	err := <-ends // the other one will only say that its connection was closed
	closeBoth()
	<-ends //nolint:errcheck // says that its connection was closed
	return err
}

// pass passes frames on until the end of one side. Its buffers are its own, so a
// migration costs little memory, however much of the guest's passes.
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
