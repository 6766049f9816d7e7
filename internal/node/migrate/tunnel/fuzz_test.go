package tunnel

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// Whatever a source sends is refused, or is a call that was due. What is passed
// on is accepted again.
func FuzzFrames(f *testing.F) {
	source, err := os.ReadFile("testdata/source.bin")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(source)
	f.Fuzz(func(t *testing.T, b []byte) {
		a := agreement()
		m, again := newMachine(&a), newMachine(&a)
		var in, out, in2 []byte
		for r := bytes.NewReader(b); ; {
			frame, err := readFrame(r, &in)
			if err != nil {
				if !errors.Is(err, io.EOF) && !isRefusal(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("neither refused nor the end: %v", err)
				}
				return
			}
			if err := m.fromSource(&frame); err != nil {
				if !isRefusal(err) {
					t.Fatalf("not a refusal: %v", err)
				}
				return
			}
			var passed bytes.Buffer
			if err := frame.write(&passed, &out); err != nil {
				t.Fatal(err)
			}
			copied, err := readFrame(&passed, &in2)
			if err != nil {
				t.Fatalf("what is passed on is no frame: %v", err)
			}
			if err := again.fromSource(&copied); err != nil {
				t.Fatalf("what is passed on is refused: %v", err)
			}
			if frame.kind == kindCall {
				reply := frame
				reply.kind, reply.body = kindReply, nil
				if err := errors.Join(m.fromTarget(&reply), again.fromTarget(&reply)); err != nil {
					t.Fatalf("an answer to a call that was passed on: %v", err)
				}
			}
		}
	})
}

// An accepted domain names only what is agreed, and is serialized again to the
// same text.
func FuzzDomain(f *testing.F) {
	for _, frame := range recorded(f, "source.bin") {
		if frame.procedure == procPrepareTunnel && frame.kind == kindCall {
			d := decoder{rest: frame.body}
			f.Add(d.params().xml)
		}
	}
	f.Add(`<domain type="kvm"><name>` + domainName + `</name><uuid>` + domainUUID + `</uuid></domain>`)
	f.Add(strings.NewReplacer("622795a5-0a0a-48ee-a1f9-0d789936f8ed", domainUUID, "ns_vm", domainName, "onbr", "br0",
		"/var/lib/libvirt/images", "/var/cache/vmgrace", "/var/log/libvirt/qemu", "/var/cache/vmgrace").Replace(q35(f)))
	f.Fuzz(func(t *testing.T, text string) {
		a := agreement()
		out, err := a.domain(text)
		if disks, examined := Examine(text, a); (examined == nil) != (err == nil) || examined != nil && len(disks) > 0 {
			t.Fatalf("read as %v, %v, where it arrives: %v", disks, examined, err)
		}
		if err != nil {
			if !isRefusal(err) {
				t.Fatalf("not a refusal: %v", err)
			}
			return
		}
		if again, err := a.domain(out); err != nil || again != out {
			t.Fatalf("%q reads as %q, %v", out, again, err)
		}
		for _, never := range []string{"<!", "<?", "<script", "<hostdev", "<filesystem", "qemu:commandline"} {
			if strings.Contains(out, never) {
				t.Fatalf("%q is in %q", never, out)
			}
		}
		root, err := parse(out, ReasonDomain)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range root.devices() {
			if d.name == "interface" && d.child("source").attr("network")+d.child("source").attr("bridge") != "br0" {
				t.Fatalf("an interface to somewhere in %q", out)
			}
			if d.name == "disk" {
				closed(t, &a, d, out)
			}
		}
	})
}

// closed checks a level of a disk and those below it.
func closed(t *testing.T, a *Agreement, level *node, out string) {
	t.Helper()
	file, store := level.file(), level.child("backingStore")
	if file == "" {
		return
	}
	if over(file, a.Paths) == "" || store == nil {
		t.Fatalf("a level of %q, %+v, in %q", file, store, out)
	}
	if len(store.children) > 0 && store.file() == "" {
		t.Fatalf("a chain without an end in %q", out)
	}
	closed(t, a, store, out)
}
