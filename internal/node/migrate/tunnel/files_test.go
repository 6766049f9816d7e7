package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// host returns the root of a host with images at /images, beside files that must not be
// reached. The allowed directory is a link of the operator's.
func host(t *testing.T) (root string, a Agreement) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"srv/images/sub", "etc", "usr/share/qemu", "dev/mapper", "var/lib/libvirt/boot"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"srv/images/a", "srv/images/sub/b", "etc/shadow", "usr/share/qemu/real", "var/lib/libvirt/boot/vmlinuz-6"} {
		if err := os.WriteFile(filepath.Join(root, file), []byte(strings.Repeat("x", 512)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"images": "/srv/images", "srv/images/link": "a", "srv/images/up": "../../etc", "srv/images/abs": "/etc/shadow", "srv/images/dangling": "/etc/new",
		"srv/images/magic": "/proc/self/root", "usr/share/qemu/firmware": "real", "var/lib/libvirt/boot/vmlinuz": "vmlinuz-6", "dev/mapper/a": "../dm-0", "dev/mapper/out": "../../etc/shadow",
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root, Agreement{Domain: "d", Paths: []string{"/images", "/dev/mapper"}, Files: NewFiles(root)}
}

// looked returns the result for a path that a domain uses so.
func looked(t *testing.T, a *Agreement, kind, name string) error {
	t.Helper()
	p, ok := a.place(kind, name)
	if !ok {
		t.Fatalf("%s may not be named as %s", name, kind)
	}
	return a.Files.look([]hostPath{p})
}

func TestNoLinkOfSharedStorageIsFollowed(t *testing.T) {
	root, a := host(t)
	if err := unix.Mkfifo(filepath.Join(root, "srv/images/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(root, "srv/images/sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		kind, name string
		passes     bool
	}{
		{"disk", "/images/a", true},
		{"disk", "/images/sub/b", true},
		{"written", "/images/new", true},
		{"written", "/images/new/deeper", true},
		{"written", "/images/a/below-a-file", true},
		{"socket", "/images/sock", true},
		{"socket", "/images/new", true},
		{"read", "/images/a", true},
		{"read", "/usr/share/qemu/firmware", true},
		{"read", "/var/lib/libvirt/boot/vmlinuz", true},
		{"nvram", "/var/lib/libvirt/qemu/nvram/d_VARS.fd", true},
		{"disk", "/dev/mapper/gone", true},
		{"disk", "/images/link", false},
		{"disk", "/images/abs", false},
		{"disk", "/images/up/shadow", false},
		{"disk", "/images/magic/etc/shadow", false},
		{"read", "/images/abs", false},
		{"nvram", "/images/abs", false},
		{"written", "/images/dangling", false},
		{"socket", "/images/link", false},
		{"disk", "/images", false},
		{"disk", "/images/sub", false},
		{"disk", "/images/fifo", false},
		{"disk", "/images/sock", false},
		{"written", "/images/fifo", false},
		{"socket", "/images/a", false},
		{"disk", "/dev/mapper/out", false},
		{"read", "/usr/share/qemu", false},
	} {
		err := looked(t, &a, c.kind, c.name)
		if (err == nil) != c.passes || err != nil && (!isRefusal(err) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.name)) {
			t.Errorf("%s as %s: %v", c.name, c.kind, err)
		}
	}
}

// A device node on shared storage would be a device of this host.
func TestADeviceIsOneOnlyBelowDev(t *testing.T) {
	root, a := host(t)
	own := Agreement{Paths: []string{"/dev"}, Files: NewFiles("/")}
	if err := looked(t, &own, "disk", "/dev/null"); !isRefusal(err) {
		t.Errorf("/dev/null as a disk: %v", err)
	}
	for name, mode := range map[string]uint32{"srv/images/node": unix.S_IFBLK, "dev/dm-0": unix.S_IFBLK, "dev/mapper/mem": unix.S_IFCHR} {
		if err := unix.Mknod(filepath.Join(root, name), mode|0o600, int(unix.Mkdev(1, 1))); err != nil {
			t.Logf("only root can make %s: %v", name, err)
			return
		}
	}
	for name, passes := range map[string]bool{"/dev/mapper/a": true, "/images/node": false, "/dev/mapper/mem": false} {
		if err := looked(t, &a, "disk", name); (err == nil) != passes {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnImageWhoseDataIsElsewhereIsRefused(t *testing.T) {
	root, a := host(t)
	image := func(magic string, features uint64, size int) {
		t.Helper()
		b := make([]byte, 104)
		copy(b, magic)
		binary.BigEndian.PutUint64(b[72:], features)
		if err := os.WriteFile(filepath.Join(root, "srv/images/q"), b[:size], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		magic    string
		features uint64
		size     int
		qcow2    bool
		passes   bool
	}{
		{"QFI\xfb", 0, 104, true, true}, {"QFI\xfb", 3, 104, true, true}, {"QFI\xfb", 4, 104, true, false}, {"QFI\xfb", 7, 80, true, false},
		{"QFI\xfb", 4, 79, true, true}, {"QFI\xfb", 4, 0, true, true}, {"xFI\xfb", 4, 104, true, true}, {"QFI\xfb", 4, 104, false, true},
	} {
		image(c.magic, c.features, c.size)
		p, _ := a.place("disk", "/images/q")
		p.qcow2 = c.qcow2
		if err := a.Files.look([]hostPath{p}); (err == nil) != c.passes || err != nil && !isRefusal(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Each path of a domain is checked, and each image of its chains.
func TestEachPathOfADomainIsLookedAt(t *testing.T) {
	root := t.TempDir()
	images := filepath.Join(root, "var/lib/libvirt/images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	a := shipped()
	a.Files = NewFiles(root)
	if _, err := a.domain(q35(t)); err != nil {
		t.Fatalf("without any of its files: %v", err)
	}
	header := make([]byte, 104)
	copy(header, "QFI\xfb")
	header[79] = 4
	for name, refused := range map[string]bool{"top.qcow2": true, "mid.qcow2": true, "plain.qcow2": true, "base.raw": false, "raw.img": false} {
		file := filepath.Join(images, name)
		if err := os.WriteFile(file, header, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := a.domain(q35(t)); isRefusal(err) != refused {
			t.Errorf("%s has its data elsewhere: %v", name, err)
		}
		if err := errors.Join(os.Remove(file), os.Symlink("/etc/shadow", file)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.domain(q35(t)); !isRefusal(err) || !strings.Contains(err.Error(), "domain/devices/disk") {
			t.Errorf("%s is a link: %v", name, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHostThatCannotBeLookedAtIsNoReasonToPass(t *testing.T) {
	_, a := host(t)
	a.Files = NewFiles(filepath.Join(t.TempDir(), "gone"))
	p, _ := a.place("disk", "/images/a")
	p.below = "/images"
	if err := a.Files.look([]hostPath{p}); err == nil || isRefusal(err) {
		t.Errorf("without a root: %v", err)
	}
}

func TestFilesThatDoNotAnswerEndNeitherWaitNorThreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFiles("/")
		for range maxLooks {
			f.looks <- struct{}{} // a look that hangs
		}
		if err := f.look([]hostPath{{name: "/a", below: "/"}}); !errors.Is(err, context.DeadlineExceeded) || isRefusal(err) {
			t.Errorf("while others hang: %v", err)
		}
	})
}
