package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
)

// The frames in testdata are from a migration between two libvirtd 9.0.0 of
// Debian 12, recorded by a relay between them. Of the memory one frame is left,
// cut to 4 KiB.

const (
	domainName = "vmgrace-test_vm-enchh6et"
	domainUUID = "6ea4a593-6ab6-4db6-97dd-f1dcde1d9d3a"
)

func agreement() Agreement {
	return Agreement{Domain: domainName, UUID: domainUUID, Paths: []string{"/var/cache/vmgrace/", "/tmp/vmgrace-node-0000000001"}, Networks: []string{"br0"}}
}

func recorded(tb testing.TB, name string) (frames []frame) {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	for r := bytes.NewReader(b); ; {
		var buf []byte
		f, err := readFrame(r, &buf)
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			tb.Fatal(err)
		}
		frames = append(frames, f)
	}
}

// played shows frames to a machine as libvirt would: the target answers each
// call and each end of a stream.
func played(tb testing.TB, source []frame) (*machine, error) {
	tb.Helper()
	a := agreement()
	m := newMachine(&a)
	answers := recorded(tb, "target.bin")
	for i := range source {
		f := source[i]
		if err := m.fromSource(&f); err != nil {
			return m, err
		}
		for j := range answers {
			answer := answers[j]
			if f.kind == kindCall && answer.kind == kindReply && answer.serial == f.serial {
				if err := m.fromTarget(&answer); err != nil {
					return m, err
				}
			}
		}
	}
	return m, nil
}

func isRefusal(err error) bool { _, is := errors.AsType[*Refusal](err); return is }

// libvirt gets the domain serialized again through Guard, and the source gets
// its replies unchanged.
func TestGuardPassesAMigrationOn(t *testing.T) {
	source, sourceEnd := net.Pipe()
	libvirt, libvirtEnd := net.Pipe()
	errs := make(chan error, 1)
	go func() { errs <- Guard(t.Context(), sourceEnd, libvirtEnd, agreement()) }()
	answers := recorded(t, "target.bin")
	var calls, replies []byte
	for _, f := range recorded(t, "source.bin") {
		var in, out []byte
		if err := f.write(source, &out); err != nil {
			t.Fatal(err)
		}
		got, err := readFrame(libvirt, &in)
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, got.body...)
		if got.kind == kindCall {
			reply := answers[0]
			answers = answers[1:]
			if reply.kind == kindStream {
				reply, answers = answers[0], answers[1:]
			}
			if err := reply.write(libvirt, &out); err != nil {
				t.Fatal(err)
			}
			back, err := readFrame(source, &in)
			if err != nil || !bytes.Equal(back.body, reply.body) || back.serial != reply.serial {
				t.Fatalf("answer %+v came back as %+v, %v", reply, back, err)
			}
			replies = append(replies, back.body...)
		}
	}
	_ = source.Close()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<name>` + domainName + `</name>`, `<kernel>/var/cache/vmgrace/`, `deletionGracePeriodSeconds>17<`} {
		if !bytes.Contains(calls, []byte(want)) {
			t.Errorf("libvirt did not receive %s", want)
		}
	}
	if len(replies) == 0 {
		t.Error("the source received nothing")
	}
}

func TestValuesOfADomainAreBounded(t *testing.T) {
	c := checker{agreed: &Agreement{}, reason: ReasonDomain}
	for kind, longest := range map[string]int{"word": 128, "set": 256, "host": 253, "free": 4096} {
		if err := c.value(kind, strings.Repeat("1", longest), "x"); err != nil {
			t.Errorf("%d bytes of %s: %v", longest, kind, err)
		}
		if err := c.value(kind, strings.Repeat("1", longest+1), "x"); err == nil {
			t.Errorf("%d bytes of %s are let in", longest+1, kind)
		}
	}
	for name, known := range map[string]bool{strings.Repeat("a", 64): true, strings.Repeat("a", 65): false} {
		if s := newSchema("a/* =number\n").children["a"]; (s.child(name) != nil) != known {
			t.Errorf("an element with a name of %d bytes: known %t, want %t", len(name), !known, known)
		}
	}
}

func TestAFrameIsBounded(t *testing.T) {
	for name, head := range map[string]string{
		"too short": "\x00\x00\x00\x1b", "too long": "\x7f\xff\xff\xff", "just too long": "\x00\x10\x00\x01",
	} {
		var buf []byte
		_, err := readFrame(strings.NewReader(head+strings.Repeat("x", 64)), &buf)
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Reason != ReasonFrame || len(buf) > 0 {
			t.Errorf("%s: %v, buffer of %d", name, err, len(buf))
		}
	}
}

func TestTheEndOfOneSideEndsTheOther(t *testing.T) {
	source, sourceEnd := net.Pipe()
	libvirt, libvirtEnd := net.Pipe()
	done := make(chan struct{})
	go func() {
		_ = Guard(t.Context(), sourceEnd, libvirtEnd, agreement())
		close(done)
	}()
	_ = libvirt.Close()
	<-done
	if _, err := source.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("the source's connection is open: %v", err)
	}
}
