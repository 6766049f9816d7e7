package main

import (
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// These are the parts of a request in libvirt's RPC (remote_protocol.x). A request has a
// length, program, version, procedure, type, serial and status, each of 4 bytes, and then
// the name.
const (
	header       = 28
	program      = 0x20008086
	procShutdown = 258 // REMOTE_PROC_DOMAIN_SHUTDOWN_FLAGS
	longest      = 32 << 20
)

// arrival is a request for a shutdown that has arrived in front of libvirt.
type arrival struct {
	domain string
	at     time.Time
	// recorded says whether the state directory had a record of the shutdown by then.
	recorded bool
}

// tap is a socket in front of libvirtd's. It forwards everything and says when requests for
// a shutdown arrive.
type tap struct {
	socket string
	// state is the directory that must have the record. "" means that no record is needed.
	// It is set before the first request.
	state    string
	arrivals chan arrival
}

func (b *bench) tap() *tap {
	b.Helper()
	t := &tap{socket: filepath.Join(b.temp(), "sock"), arrivals: make(chan arrival, 10_000)}
	b.relay("unix", t.socket, b.node().Socket(), t.forward, through)
	return t
}

func (t *tap) forward(server io.Writer, client io.Reader) error {
	length := make([]byte, 4)
	for {
		if _, err := io.ReadFull(client, length); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(length)
		if n < header || n > longest {
			return errors.New("not libvirt's RPC")
		}
		message := make([]byte, n)
		copy(message, length)
		if _, err := io.ReadFull(client, message[4:]); err != nil {
			return err
		}
		t.note(message)
		if _, err := server.Write(message); err != nil {
			return err
		}
	}
}

func (t *tap) note(message []byte) {
	at := time.Now()
	word := func(i int) uint32 { return binary.BigEndian.Uint32(message[4*i:]) }
	if word(1) != program || word(3) != procShutdown || word(4) != 0 || len(message) < header+4 {
		return
	}
	name := message[header+4:]
	name = name[:min(int(word(7)), len(name))]
	a := arrival{domain: string(name), at: at}
	if t.state != "" {
		// The request is forwarded only after the record was looked for.
		loaded, err := gracecache.Read(t.state)
		for _, r := range loaded.Records {
			a.recorded = a.recorded || err == nil && r.Domain() == a.domain && r.ShuttingDown()
		}
	}
	t.arrivals <- a
}

// next returns the request for this domain's shutdown.
func (t *tap) next(b *bench, domain string) arrival {
	b.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case a := <-t.arrivals:
			if a.domain == domain {
				return a
			}
		case <-late:
			b.Fatalf("no request for %s reaches libvirt", domain)
		}
	}
}
