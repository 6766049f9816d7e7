//go:build !unit

package handover

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given a guest whose memory contains a secret: a part of its kernel's command line. When
// it is moved, then no packet on this machine contains the secret. Otherwise anybody on the
// network could read the guest's memory.
func TestNothingOfAGuestsMemoryIsReadableOnTheLink(t *testing.T) {
	ofBothKindsIfLong(t, started, notReadableOnTheLink)
}

func notReadableOnTheLink(w world) {
	t := w.TB
	const marker = "secret-of-the-guest-4711"
	v := w.guarded(node.Spec{GuestAgent: true, Behaviour: "marker=" + marker})
	c := capture(w, marker)
	// Given a capture that finds the secret in packets that are not encrypted.
	c.see(w, marker)
	if got := c.found.Swap(0); got == 0 {
		t.Fatal("the capture finds nothing")
	}
	// When the guest is moved,
	c.bytes.Store(0)
	v.schedule(w.b, `"bandwidthMiB":32`)
	if !v.decided() {
		t.Fatalf("it was not moved: %s", v.whyFailed())
	}
	// then the packets contained its memory, and the secret cannot be read in them.
	if sent := c.bytes.Load(); sent < 16<<20 {
		t.Errorf("only %d bytes were seen", sent)
	}
	if lost := c.lost(w); lost > 0 || c.found.Load() > 0 {
		t.Errorf("the guest's memory was seen %d times; %d packets were not seen at all", c.found.Load(), lost)
	}
	t.Logf("%d MiB were searched", c.bytes.Load()>>20)
	v.ends()
}

// packets captures all packets that pass this machine's loopback interface.
type packets struct {
	fd           int
	found, bytes atomic.Int64
}

// capture searches every packet for a text. It also finds a text that starts in one packet
// and ends in the next one of the same connection and direction.
func capture(w world, text string) *packets {
	w.Helper()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		w.Fatal(err)
	}
	// This captures as tcpdump does: packet(7), each packet once, on its way in.
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		w.Fatalf("capture: %v", err)
	}
	c := &packets{fd: fd}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: lo.Index}); err != nil {
		w.Fatalf("capture: %v", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		w.Fatalf("capture: %v", err)
	}
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.search([]byte(text), stop)
	}()
	w.Cleanup(func() { close(stop); <-done; _ = unix.Close(fd) })
	return c
}

func (c *packets) search(text []byte, stop <-chan struct{}) {
	packet := make([]byte, 1<<17)
	tails := map[string][]byte{}
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(c.fd, packet, 0)
		if ll, ok := from.(*unix.SockaddrLinklayer); err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 40 || packet[9] != unix.IPPROTO_TCP {
			continue // the socket sees each packet on lo twice
		}
		head := int(packet[0]&15) * 4
		data := packet[min(n, head+int(packet[head+12]>>4)*4):n]
		if len(data) == 0 {
			continue
		}
		flow := string(packet[12:20]) + string(packet[head:head+4])
		seen := append(tails[flow], data...)
		c.bytes.Add(int64(len(data)))
		c.found.Add(int64(bytes.Count(seen, text)))
		tails[flow] = bytes.Clone(seen[max(0, len(seen)-len(text)+1):])
	}
}

// see sends the text over the loopback interface and waits until the capture finds it.
func (c *packets) see(w world, text string) {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	defer l.Close()
	s, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.Fatal(err)
	}
	defer s.Close()
	begin, end, _ := strings.Cut(text, "-")
	for _, part := range []string{"some " + begin, "-" + end + " more"} {
		if _, err := s.Write([]byte(part)); err != nil {
			w.Fatal(err)
		}
	}
	node.Eventually(w, 5*time.Second, func() bool { return c.found.Load() > 0 }, "the capture finds nothing")
}

// lost returns how many packets the kernel has dropped instead of passing them to the
// socket.
func (c *packets) lost(w world) int {
	w.Helper()
	s, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		w.Fatal(err)
	}
	return int(s.Drops)
}
