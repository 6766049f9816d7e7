package tunnel

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// decoder reads XDR (RFC 4506). It keeps the first error; later reads return zero values.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(text string) {
	if d.err == nil {
		d.err = refuse(ReasonParam, "an argument %s", text)
	}
	d.rest = nil
}

func (d *decoder) uint32() uint32 {
	if len(d.rest) < 4 {
		d.fail("is cut short")
		return 0
	}
	v := binary.BigEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	return v
}

func (d *decoder) uint64() uint64 {
	high := uint64(d.uint32())
	return high<<32 | uint64(d.uint32())
}

// opaque reads variable-length bytes with their padding, which must be zero.
func (d *decoder) opaque(limit int) []byte {
	n := int(d.uint32())
	padded := (n + 3) &^ 3
	if n < 0 || n > limit || padded > len(d.rest) {
		d.fail("is too long")
		return nil
	}
	b := d.rest[:n:n]
	for _, pad := range d.rest[n:padded] {
		if pad != 0 {
			d.fail("has padding that is not zero")
			return nil
		}
	}
	d.rest = d.rest[padded:]
	return b
}

// string reads text without NUL bytes.
func (d *decoder) string(limit int) string {
	s := string(d.opaque(limit))
	if !utf8.ValidString(s) {
		d.fail("is not UTF-8")
		return ""
	}
	if strings.Contains(s, "\x00") {
		d.fail("has a NUL byte in its text")
		return ""
	}
	return s
}

// end returns the first error, or an error if data is left.
func (d *decoder) end() error {
	if len(d.rest) > 0 {
		d.fail("is followed by more")
	}
	return d.err
}

func putUint32(b []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(b, v) }

func putOpaque[T ~string | ~[]byte](b []byte, v T) []byte {
	b = append(putUint32(b, uint32(len(v))), v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
