package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
)

const migratedUUID = "6ea4a593-6ab6-4db6-97dd-f1dcde1d9d3a"

// arriving returns a domain with these words in its os element and its devices.
func arriving(os, devices string) string {
	return `<domain type='kvm'><name>ns_vm</name><uuid>` + migratedUUID + `</uuid><memory>1024</memory><vcpu>1</vcpu><os>` + os +
		`</os><devices><emulator>/usr/bin/qemu-system-x86_64</emulator>` + devices + `</devices></domain>`
}

// With the manifests' flags a guest writes to no firmware and reads only allowed ones,
// even if an operator allows its directory as was once usual.
func TestFirmwareIsReadAndNeverWritten(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "var/lib/libvirt/images"), 0o700); err != nil {
		t.Fatal(err)
	}
	shipped, err := Parse([]string{"--standalone"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	on := func(file string) string {
		return arriving("", `<disk type='file' device='disk'><driver type='raw'/><source file='`+file+`'/><target dev='vda'/></disk>`)
	}
	loader := func(file string) string {
		return arriving(`<loader readonly='yes' type='pflash'>`+file+`</loader>`, "")
	}
	old := []string{"/var/lib/libvirt/images", "/var/lib/libvirt/boot", "/usr/share/OVMF", "/opt/firmware"}
	for _, c := range []struct {
		what           string
		paths, reading []string
		domain         string
		passes         bool
	}{
		{"an image", shipped.Migration.AllowPaths, nil, on("/var/lib/libvirt/images/a"), true},
		{"firmware of the distribution", shipped.Migration.AllowPaths, nil, loader("/usr/share/OVMF/OVMF_CODE.fd"), true},
		{"a disk on it", shipped.Migration.AllowPaths, nil, on("/usr/share/OVMF/OVMF_CODE.fd"), false},
		{"a disk on it, allowed", old, nil, on("/usr/share/OVMF/OVMF_CODE.fd"), false},
		{"firmware, allowed", old, nil, loader("/usr/share/OVMF/OVMF_CODE.fd"), true},
		{"a disk on a kernel, allowed", old, nil, on("/var/lib/libvirt/boot/vmlinuz"), false},
		{"firmware elsewhere", shipped.Migration.AllowPaths, nil, loader("/opt/firmware/x"), false},
		{"firmware elsewhere, read", shipped.Migration.AllowPaths, []string{"/opt/firmware"}, loader("/opt/firmware/x"), true},
		{"a disk on firmware elsewhere, read", old, []string{"/opt/firmware"}, on("/opt/firmware/x"), false},
	} {
		o := MigrationOptions{AllowPaths: c.paths, AllowFirmware: c.reading}
		a := o.allowed(root)
		a.Domain, a.UUID = "ns_vm", migratedUUID
		if _, err := tunnel.Examine(c.domain, a); (err == nil) != c.passes {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestAnArrivingVMIsNoLargerThanTheNode(t *testing.T) {
	a := (&MigrationOptions{}).allowed("/")
	if a.Memory == 0 || a.Memory > 1<<50 || a.CPUs < cpusPerCPU {
		t.Errorf("%d bytes, %d CPUs", a.Memory, a.CPUs)
	}
}

func TestTheNodesRootIsThatOfProcessOneIfItMayBeSeen(t *testing.T) {
	dir := t.TempDir()
	if root := rootOf(dir, slog.New(slog.DiscardHandler)); root != dir {
		t.Errorf("%s for %s", root, dir)
	}
	if gone := filepath.Join(dir, "gone"); rootOf(gone, slog.New(slog.DiscardHandler)) != gone {
		t.Error("where it is not there, another is taken")
	}
}
