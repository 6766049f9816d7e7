package tunnel

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFrameIsReadWholeOrNotAtAll(t *testing.T) {
	whole := frame{program: programRemote, version: 1, procedure: 60, serial: 1, body: []byte("body")}
	var b bytes.Buffer
	var out, in []byte
	for _, body := range []string{"body", ""} {
		whole.body = []byte(body)
		b.Reset()
		if err := whole.write(&b, &out); err != nil {
			t.Fatal(err)
		}
		text := b.Bytes()
		for n := range text {
			if _, err := readFrame(bytes.NewReader(text[:n]), &in); err == nil || isRefusal(err) || n == 0 && !errors.Is(err, io.EOF) {
				t.Errorf("%d of %d bytes: %v", n, len(text), err)
			}
		}
	}
	for _, size := range []int{0, maxFrame - headerSize} {
		whole.body = make([]byte, size)
		b.Reset()
		if err := whole.write(&b, &out); err != nil {
			t.Fatal(err)
		}
		if f, err := readFrame(&b, &in); err != nil || len(f.body) != size {
			t.Errorf("a frame of %d bytes: %d, %v", size, len(f.body), err)
		}
	}
	end, begin := io.Pipe()
	_ = end.Close()
	if err := whole.write(begin, &out); err == nil {
		t.Error("a frame that could not be written")
	}
}

func TestAKeepaliveHasNothingInIt(t *testing.T) {
	for what, c := range map[string]struct {
		passes bool
		change func(f *frame)
	}{
		"a ping":          {true, func(*frame) {}},
		"a pong":          {true, func(f *frame) { f.procedure = 2 }},
		"another":         {false, func(f *frame) { f.procedure = 3 }},
		"procedure 0":     {false, func(f *frame) { f.procedure = 0 }},
		"a call":          {false, func(f *frame) { f.kind = kindCall }},
		"with a serial":   {false, func(f *frame) { f.serial = 1 }},
		"an error":        {false, func(f *frame) { f.status = statusError }},
		"with a body":     {false, func(f *frame) { f.body = make([]byte, 4) }},
		"another version": {false, func(f *frame) { f.version = 2 }},
	} {
		f := frame{program: programKeepalive, version: 1, procedure: 1, kind: kindMessage}
		c.change(&f)
		if err := f.check(); (err == nil) != c.passes || f.keepalive() != c.passes && f.version == 1 {
			t.Errorf("%s: %v, keepalive %t", what, err, f.keepalive())
		}
	}
	// A frame that looks like a keepalive in libvirt's own program is none.
	if f := (frame{program: programRemote, version: 1, procedure: 1, kind: kindMessage}); f.keepalive() {
		t.Error("an event of libvirt's counts as a keepalive")
	}
}

func TestXMLIsOneElementOfBoundedSize(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("<a>", n) + strings.Repeat("</a>", n) }
	for text, passes := range map[string]bool{
		"<a/>": true, " <a/>\n": true, "<a>x</a>": true, "<a><!-- c --></a>": true, "": false, "x": false, "<a/>x": false, "<a/><b/>": false, "<a>": false, "</a>": false, "<a></b>": false,
		"<a></a></a>": false, "<a x='1' x='2'/>": false, "<a x='1' y='2'/>": true, "<a x=1/>": false, "<a>&b;</a>": false, "<a>&amp;</a>": true, "<!DOCTYPE a><a/>": false, "<?x y?><a/>": false,
		"<a:b x:y='1'/>": true, "<a\x00/>": false, "<a>\xff</a>": false, nested(maxDepth - 1): true, nested(maxDepth): false,
		"<a>" + strings.Repeat("<b/>", maxTokens/2-1) + "</a>": true, "<a>" + strings.Repeat("<b/>", maxTokens/2) + "</a>": false,
		"<a>" + strings.Repeat(" ", maxFrame-7) + "</a>": true, "<a>" + strings.Repeat(" ", maxFrame-6) + "</a>": false,
	} {
		if n, err := parse(text, ReasonDomain); (err == nil) != passes || err != nil && (!isRefusal(err) || n != nil) {
			t.Errorf("%.80q of %d bytes: %v", text, len(text), err)
		}
	}
}

func TestWhatASchemaDoesNotHaveIsRefused(t *testing.T) {
	a := Agreement{Domain: "d", UUID: "u"}
	s := newSchema("r\nr/name =name\nr/uuid =agreed-uuid\nr/e x=on|off =free\nr/e/f\nr/plain\n")
	const must = "<name>d</name><uuid>u</uuid>"
	for text, passes := range map[string]bool{
		must: true, must + "<e x='on'/>": true, must + "<e>text</e>": true, must + "<e><f/></e>": false, must + "<plain> \n </plain>": true,
		must + "<other/>": false, must + "<e y=''/>": false, must + "<e y='1'/>": false, must + "<e x=''/>": false, must + "<plain>x</plain>": false,
		must + "<e>text<f/></e>": false, must + "<e><f/>text</e>": false, must + "text": false, "<name>d</name>": false, "<uuid>u</uuid>": false, "": false,
		must + "<name>d</name>": false, must + "<e/><e/>": true, "<name>e</name><uuid>u</uuid>": false, "<name>d</name><uuid>v</uuid>": false,
	} {
		if _, err := a.read("<r>"+text+"</r>", s, ReasonDomain); (err == nil) != passes || err != nil && !isRefusal(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := a.read("<q>"+must+"</q>", s, ReasonDomain); !isRefusal(err) {
		t.Errorf("another root: %v", err)
	}
}

func TestTheDisksOfADomainAreSaid(t *testing.T) {
	want := []Disk{
		{File: "/var/lib/libvirt/images/top.qcow2", Cache: "none"}, {File: "/var/lib/libvirt/images/plain.qcow2"}, {File: "/var/lib/libvirt/images/raw.img"},
		{File: "/var/lib/libvirt/images/nodriver.img"}, {File: "/var/lib/libvirt/images/cd.iso", ReadOnly: true}, {ReadOnly: true},
	}
	examined, err := Examine(q35(t), shipped())
	if err != nil {
		t.Fatal(err)
	}
	sendable, err := Sendable(q35(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(examined) != len(want) || len(sendable) != len(want) {
		t.Fatalf("%+v, %+v", examined, sendable)
	}
	for i := range want {
		if examined[i] != want[i] || sendable[i] != want[i] {
			t.Errorf("%+v, %+v; want %+v", examined[i], sendable[i], want[i])
		}
	}
	shared := before(t, "<memballoon", "<disk type='block' device='disk'><source dev='/dev/x'/><target dev='vdy'/><shareable/></disk>")
	if disks, err := Sendable(shared); err != nil || disks[len(want)] != (Disk{Device: "/dev/x", Shareable: true}) {
		t.Errorf("%+v, %v", disks, err)
	}
	for _, text := range []string{"<domain", before(t, "<memballoon", "<hostdev/>"), before(t, "<memballoon", "<filesystem/>"), before(t, "<memballoon", "<shmem/>")} {
		if disks, err := Sendable(text); !isRefusal(err) || disks != nil {
			t.Errorf("sent: %+v, %v", disks, err)
		}
		if disks, err := Examine(text, shipped()); !isRefusal(err) || disks != nil {
			t.Errorf("examined: %+v, %v", disks, err)
		}
	}
	if disks, err := Sendable("<domain/>"); err != nil || disks != nil {
		t.Errorf("without devices: %+v, %v", disks, err)
	}
}

func TestAPathThatCannotBeLookedAtIsRefused(t *testing.T) {
	root, a := host(t)
	if err := looked(t, &a, "disk", "/images/"+strings.Repeat("x", 300)); !isRefusal(err) || !strings.Contains(err.Error(), "cannot be looked at") {
		t.Error(err)
	}
	// If the directory itself is missing, no path leads anywhere.
	a.Paths = []string{filepath.Join("/", "gone")}
	if err := looked(t, &a, "disk", "/gone/x"); err != nil {
		t.Errorf("below %s: %v", root, err)
	}
}
