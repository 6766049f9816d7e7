package tunnel

import (
	"encoding/binary"
	"fmt"
	"io"
)

// The two programs that share a connection.
const (
	programRemote    = 0x20008086
	programKeepalive = 0x6b656570
	protocolVersion  = 1
)

// kind is a frame's type (virNetMessageType).
type kind uint32

const (
	kindCall kind = iota
	kindReply
	kindMessage
	kindStream
)

// status is a reply's result (virNetMessageStatus); in a stream, whether more follows.
type status uint32

const (
	statusOK status = iota
	statusError
	statusContinue
)

const (
	headerSize = 28
	// maxFrame bounds a frame in bytes. libvirt's streams have chunks of 64 KiB, and a
	// domain of a hundred disks has less than 200 KiB.
	maxFrame = 1 << 20
)

// frame is one message of libvirt's RPC.
type frame struct {
	program, version, procedure uint32
	kind                        kind
	serial                      uint32
	status                      status
	body                        []byte
}

// readFrame reads one frame. Its body is in buf, which grows as needed up to maxFrame. At
// the end, between two frames, the error is io.EOF.
func readFrame(r io.Reader, buf *[]byte) (frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:4]); err != nil {
		return frame{}, fmt.Errorf("read a frame: %w", err)
	}
	length := binary.BigEndian.Uint32(h[:4])
	if length < headerSize || length > maxFrame {
		return frame{}, refuse(ReasonFrame, "a frame of %d bytes", length)
	}
	if _, err := io.ReadFull(r, h[4:]); err != nil {
		return frame{}, fmt.Errorf("read a frame's header: %w", err)
	}
	field := func(i int) uint32 { return binary.BigEndian.Uint32(h[4*i:]) }
	f := frame{program: field(1), version: field(2), procedure: field(3), kind: kind(field(4)), serial: field(5), status: status(field(6))}
	size := int(length) - headerSize
	if cap(*buf) < size {
		*buf = make([]byte, size)
	}
	f.body = (*buf)[:size]
	if _, err := io.ReadFull(r, f.body); err != nil {
		return frame{}, fmt.Errorf("read a frame's body: %w", err)
	}
	return f, f.check()
}

// check refuses what neither side sends: file descriptors, holes, other programs.
func (f *frame) check() error {
	switch {
	case f.program != programRemote && f.program != programKeepalive:
		return refuse(ReasonFrame, "program %#x", f.program)
	case f.version != protocolVersion:
		return refuse(ReasonFrame, "version %d of program %#x", f.version, f.program)
	case f.kind > kindStream:
		return refuse(ReasonFrame, "a frame of type %d", f.kind)
	case f.status > statusContinue:
		return refuse(ReasonFrame, "a frame of status %d", f.status)
	case f.program == programKeepalive && !f.keepalive():
		return refuse(ReasonFrame, "a keepalive with procedure %d, type %d, serial %d and %d bytes", f.procedure, f.kind, f.serial, len(f.body))
	default:
		return nil
	}
}

// keepalive reports whether it is a ping or a pong. Both sides may send them at any time.
func (f *frame) keepalive() bool {
	return f.program == programKeepalive && (f.procedure == 1 || f.procedure == 2) &&
		f.kind == kindMessage && f.serial == 0 && f.status == statusOK && len(f.body) == 0
}

// write writes the frame with one call of Write.
func (f *frame) write(w io.Writer, buf *[]byte) error {
	b := (*buf)[:0]
	for _, field := range [...]uint32{
		headerSize + uint32(len(f.body)),
		f.program, f.version, f.procedure, uint32(f.kind), f.serial, uint32(f.status),
	} {
		b = binary.BigEndian.AppendUint32(b, field)
	}
	b = append(b, f.body...)
	*buf = b
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("pass a frame on: %w", err)
	}
	return nil
}
