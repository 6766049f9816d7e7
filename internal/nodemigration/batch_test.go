package nodemigration

import (
	"bytes"
	"net"
	"testing"
)

// counted is a connection that notes what it is given, write by write.
type counted struct {
	net.Conn

	writes [][]byte
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes = append(c.writes, bytes.Clone(p))
	return len(p), nil
}

func TestABatchSendsAtOnceWhatIsNotHeldAndAllOfTheRestAtItsEnd(t *testing.T) {
	c := &counted{}
	b := newBatch(c)
	write := func(text string) {
		t.Helper()
		if n, err := b.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	write("hello")
	if len(c.writes) != 1 {
		t.Fatalf("a handshake's line waits: %q", c.writes)
	}
	// TLS makes five records of a frame.
	b.hold()
	record := bytes.Repeat([]byte("r"), 16<<10)
	for range 4 {
		write(string(record))
	}
	write("rest")
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	if len(c.writes) != 2 || len(c.writes[1]) != 64<<10+4 {
		t.Errorf("a frame of 64 KiB took %d writes", len(c.writes)-1)
	}
	write("more")
	if len(c.writes) != 3 {
		t.Error("it is held for ever")
	}
}
