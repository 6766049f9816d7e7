package tunnel

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// edit changes the body of the recorded calls of one procedure. XML has its
// length in front, so change must decode and encode it.
func edit(frames []frame, procedure uint32, change func(body []byte) []byte) []frame {
	frames = slices.Clone(frames)
	for i := range frames {
		if frames[i].procedure == procedure && frames[i].kind == kindCall {
			frames[i].body = change(slices.Clone(frames[i].body))
		}
	}
	return frames
}

// prepareWith returns the recorded PREPARE with another domain, name, cookie or
// flags.
func prepareWith(tb testing.TB, frames []frame, change func(p *params, cookie *string, flags *uint32)) []frame {
	tb.Helper()
	return edit(frames, procPrepareTunnel, func(body []byte) []byte {
		d := decoder{rest: body}
		p, cookie, given := d.params(), d.cookie(), d.uint32()
		if err := d.end(); err != nil {
			tb.Fatal(err)
		}
		change(&p, &cookie, &given)
		return putUint32(putCookie(p.put(nil), cookie), given)
	})
}

func replaced(old, with string) func(testing.TB, []frame) []frame {
	return func(tb testing.TB, frames []frame) []frame {
		tb.Helper()
		return prepareWith(tb, frames, func(p *params, _ *string, _ *uint32) {
			if !strings.Contains(p.xml, old) {
				tb.Fatalf("there is no %s", old)
			}
			p.xml = strings.Replace(p.xml, old, with, 1)
		})
	}
}

func device(text string) func(testing.TB, []frame) []frame {
	return replaced("<memballoon", text+"<memballoon")
}

func cookie(old, with string) func(testing.TB, []frame) []frame {
	return func(tb testing.TB, frames []frame) []frame {
		tb.Helper()
		return prepareWith(tb, frames, func(_ *params, c *string, _ *uint32) {
			if !strings.Contains(*c, old) {
				tb.Fatalf("there is no %s", old)
			}
			*c = strings.Replace(*c, old, with, 1)
		})
	}
}

func flagged(with uint32) func(testing.TB, []frame) []frame {
	return func(tb testing.TB, frames []frame) []frame {
		tb.Helper()
		return prepareWith(tb, frames, func(_ *params, _ *string, f *uint32) { *f = with })
	}
}

// uri puts another URI, or flags, into CONNECT_OPEN.
func uri(with string, flags uint32) func(testing.TB, []frame) []frame {
	return func(_ testing.TB, frames []frame) []frame {
		return edit(frames, procOpen, func([]byte) []byte { return putUint32(putOpaque(putUint32(nil, 1), with), flags) })
	}
}

// doubled repeats a parameter of PREPARE; libvirt uses the second one.
func doubled(name string) func(testing.TB, []frame) []frame {
	return func(_ testing.TB, frames []frame) []frame {
		return edit(frames, procPrepareTunnel, func(body []byte) []byte {
			extra := putOpaque(putUint32(putOpaque(nil, name), typeString), "x")
			return slices.Concat(putUint32(nil, 3), extra, body[4:])
		})
	}
}

func at(procedure uint32, change func(f *frame)) func(testing.TB, []frame) []frame {
	return func(_ testing.TB, frames []frame) []frame {
		frames = slices.Clone(frames)
		for i := range frames {
			if frames[i].procedure == procedure && frames[i].kind == kindCall {
				change(&frames[i])
				break
			}
		}
		return frames
	}
}

func call(procedure uint32) func(testing.TB, []frame) []frame {
	return at(procRegisterClose, func(f *frame) { f.procedure = procedure })
}

const bomb = `<!DOCTYPE d [<!ENTITY a "aaaaaaaaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>`

var errNothing = errors.New("nothing was refused")

func TestAHostileSourceIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		change func(testing.TB, []frame) []frame
	}{
		"a command in the URI":    {ReasonParam, uri("qemu+ext:///system?command=/bin/sh", 0)},
		"another host in the URI": {ReasonParam, uri("qemu+tcp://10.0.0.1/system", 0)},
		"a socket in the URI":     {ReasonParam, uri("qemu:///system?socket=/run/x", 0)},
		"the session's libvirt":   {ReasonParam, uri("qemu:///session", 0)},
		"a connection with flags": {ReasonParam, uri(systemURI, 1)},
		"another destination_name": {ReasonParam, func(tb testing.TB, f []frame) []frame {
			tb.Helper()
			return prepareWith(tb, f, func(p *params, _ *string, _ *uint32) { p.name = "other" })
		}},
		"another name":                 {ReasonDomain, replaced("<name>"+domainName, "<name>other")},
		"a second name":                {ReasonDomain, replaced("<name>", "<name>other</name><name>")},
		"a second name, the same":      {ReasonDomain, replaced("<name>", "<name>"+domainName+"</name><name>")},
		"another UUID":                 {ReasonDomain, replaced("<uuid>6", "<uuid>7")},
		"an empty UUID":                {ReasonDomain, replaced("<uuid>"+domainUUID+"</uuid>", "<uuid/>")},
		"no UUID":                      {ReasonDomain, replaced("<uuid>"+domainUUID+"</uuid>", "")},
		"another name in the cookie":   {ReasonCookie, cookie("<name>"+domainName, "<name>other")},
		"another UUID in the cookie":   {ReasonCookie, cookie("<uuid>6", "<uuid>7")},
		"a server for disks":           {ReasonCookie, cookie("</qemu-migration>", `<nbd port="1"/></qemu-migration>`)},
		"a persistent domain":          {ReasonCookie, cookie("</qemu-migration>", `<domain type="qemu"/></qemu-migration>`)},
		"leases of a lock manager":     {ReasonCookie, cookie("</qemu-migration>", `<lockstate driver="sanlock"><leases>x</leases></lockstate></qemu-migration>`)},
		"PERSIST_DEST":                 {ReasonParam, flagged(flags | 8)},
		"UNDEFINE_SOURCE":              {ReasonParam, flagged(flags | 16)},
		"NON_SHARED_DISK":              {ReasonParam, flagged(flags | 64)},
		"not paused":                   {ReasonParam, flagged(7)},
		"not tunnelled":                {ReasonParam, flagged(0x23)},
		"an offline migration":         {ReasonParam, flagged(flags | 1<<10)},
		"destination_name twice":       {ReasonParam, doubled("destination_name")},
		"an unknown parameter":         {ReasonParam, doubled("migrate_disks")},
		"another emulator":             {ReasonPath, replaced("<emulator>/usr/bin/qemu-system-x86_64", "<emulator>/bin/sh")},
		"an emulator beside the real":  {ReasonPath, replaced("<emulator>/usr/bin/", "<emulator>/usr/bin/../../tmp/")},
		"a command line for QEMU":      {ReasonDomain, replaced("</devices>", `</devices><qemu:commandline><qemu:arg value="-x"/></qemu:commandline>`)},
		"QEMU's namespace":             {ReasonDomain, replaced("<domain type='qemu'", "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'")},
		"a default namespace":          {ReasonDomain, replaced("<domain type='qemu'", "<domain type='qemu' xmlns='urn:x'")},
		"a script of an interface":     {ReasonDomain, device(`<interface type="bridge"><source bridge="br0"/><script path="/bin/x"/></interface>`)},
		"another bridge":               {ReasonPath, device(`<interface type="bridge"><source bridge="br1"/></interface>`)},
		"an interface of the host":     {ReasonDomain, device(`<interface type="direct"><source dev="eth0"/></interface>`)},
		"an interface of a tenant's":   {ReasonDomain, device(`<interface type="vhostuser"><source type="unix" path="/x" mode="client"/></interface>`)},
		"virtiofs":                     {ReasonDomain, device(`<filesystem type="mount"><driver type="virtiofs"/><source dir="/"/><target dir="x"/></filesystem>`)},
		"a host device":                {ReasonDomain, device(`<hostdev mode="subsystem" type="pci"/>`)},
		"shared memory":                {ReasonDomain, device(`<shmem name="x"/>`)},
		"a vTPM of the host's":         {ReasonDomain, device(`<tpm><backend type="passthrough"><device path="/dev/tpm0"/></backend></tpm>`)},
		"a disk by its network":        {ReasonDomain, device(`<disk type="network" device="disk"><source protocol="nbd" name="x"/></disk>`)},
		"a foreign kernel":             {ReasonPath, replaced("<kernel>/var/cache", "<kernel>/etc")},
		"a foreign initrd":             {ReasonPath, replaced("<initrd>/var/cache", "<initrd>/etc")},
		"a foreign loader":             {ReasonPath, replaced("<kernel>", `<loader readonly="yes" type="rom">/tmp/x</loader><kernel>`)},
		"an ACPI table":                {ReasonDomain, replaced("<kernel>", `<acpi><table type="slic">/etc/shadow</table></acpi><kernel>`)},
		"a serial port that listens":   {ReasonDomain, device(`<serial type="tcp"><source mode="bind" host="0.0.0.0" service="1"/></serial>`)},
		"seclabel none":                {ReasonDomain, replaced("<devices>", `<seclabel type="none"/><devices>`)},
		"a partition of its own":       {ReasonDomain, replaced("<partition>/machine", "<partition>/system.slice")},
		"memory in a file":             {ReasonDomain, replaced("<devices>", `<memoryBacking><source type="file"/></memoryBacking><devices>`)},
		"a document type":              {ReasonDomain, replaced("<domain", bomb+"<domain")},
		"an entity":                    {ReasonDomain, replaced("<cmdline>", "<cmdline>&x;")},
		"an instruction":               {ReasonDomain, replaced("<domain", `<?xml version="1.0"?><domain`)},
		"a second document":            {ReasonDomain, replaced("</domain>", "</domain><domain/>")},
		"XML that does not nest":       {ReasonDomain, replaced("</devices>\n</domain>", "</domain>\n</devices>")},
		"an attribute twice":           {ReasonDomain, replaced("<domain type='qemu'", "<domain type='qemu' type='kvm'")},
		"XML that is deep":             {ReasonDomain, device(strings.Repeat("<a>", 100) + strings.Repeat("</a>", 100))},
		"text between elements":        {ReasonDomain, replaced("<devices>", "<devices>x")},
		"a lookup of another domain":   {ReasonCall, call(23)},
		"a command for QEMU's monitor": {ReasonCall, at(procRegisterClose, func(f *frame) { f.program, f.procedure = programRemote, 1234 })},
		"a volume's download":          {ReasonCall, call(209)},
		"a second call":                {ReasonCall, at(procAuthList, func(f *frame) { f.procedure = procOpen })},
		"a serial out of order":        {ReasonCall, at(procPrepareTunnel, func(f *frame) { f.serial = 7 })},
		"a reply from the source":      {ReasonCall, at(procOpen, func(f *frame) { f.kind = kindReply })},
		"arguments where none are":     {ReasonParam, at(procRegisterClose, func(f *frame) { f.body = []byte("abcd") })},
		"arguments that are cut":       {ReasonParam, at(procOpen, func(f *frame) { f.body = f.body[:9] })},
		"arguments with more behind":   {ReasonParam, at(procOpen, func(f *frame) { f.body = append(slices.Clone(f.body), 0, 0, 0, 0) })},
		"an end of another domain":     {ReasonParam, at(procFinish, func(f *frame) { f.body = bytes.Replace(f.body, []byte("131072"), []byte("131073"), 1) })},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := played(t, c.change(t, recorded(t, "source.bin")))
			if err == nil {
				err = errNothing
			}
			r, ok := errors.AsType[*Refusal](err)
			if !ok || r.Reason != c.reason {
				t.Fatalf("%v; want a refusal for %s", err, c.reason)
			}
			if strings.ContainsAny(r.Error(), "\n\r") || len(r.Error()) > 300 {
				t.Errorf("not one short line: %q", r.Error())
			}
		})
	}
}

// Frames that libvirt itself would not send are refused at any place.
func TestFramesThatNoMigrationSends(t *testing.T) {
	for name, f := range map[string]frame{
		"file descriptors":   {program: programRemote, version: 1, procedure: 1, kind: 4},
		"a hole":             {program: programRemote, version: 1, procedure: procPrepareTunnel, kind: 6},
		"QEMU's program":     {program: 0x20008087, version: 1, procedure: 1},
		"the lxc program":    {program: 0x20008088, version: 1, procedure: 1},
		"another version":    {program: programRemote, version: 2, procedure: procAuthList},
		"a keepalive's call": {program: programKeepalive, version: 1, procedure: 3, kind: kindMessage},
		"another status":     {program: programRemote, version: 1, procedure: procAuthList, status: 3},
	} {
		var out, in []byte
		var b bytes.Buffer
		if err := f.write(&b, &out); err != nil {
			t.Fatal(err)
		}
		if _, err := readFrame(&b, &in); !isRefusal(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Any frame out of turn ends the connection. The test leaves out each recorded
// frame, and sends each one twice.
func TestTheOrderIsTheWholeOrder(t *testing.T) {
	frames := recorded(t, "source.bin")
	for i, f := range frames {
		optional := f.procedure == procSupportsFeature
		last := i >= len(frames)-2                                 // the calls that close the connection are optional
		data := f.kind == kindStream && f.status == statusContinue // any number of them
		if _, err := played(t, slices.Delete(slices.Clone(frames), i, i+1)); err == nil && !optional && !last && !data && f.procedure != procRegisterClose {
			t.Errorf("frame %d (procedure %d) may be left out", i, f.procedure)
		}
		if _, err := played(t, slices.Insert(slices.Clone(frames), i, f)); err == nil && !data {
			t.Errorf("frame %d (procedure %d) may be sent twice", i, f.procedure)
		}
	}
}
