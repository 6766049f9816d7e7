package inpod

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

// Given files on a tmpfs, as an emptyDir may be. Then the one that is locked as QEMU locks a disk
// that it writes to is the process's disk, and others are not: a pid file, a log, an image that is
// only read.
func TestADiskThatGoesWithItsPodIsSeen(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "disks") //nolint:usetesting // a tmpfs is needed
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, os.RemoveAll(dir)) })
	open := func(name string, flags, command int) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), flags|os.O_CREATE, 0o600)
		kit.Must(t, err)
		t.Cleanup(func() { kit.Must(t, f.Close()) })
		if command != 0 {
			kit.Must(t, unix.FcntlFlock(f.Fd(), command, &unix.Flock_t{Type: unix.F_RDLCK, Start: 100, Len: 2}))
		}
	}
	open("log", os.O_RDWR, 0)
	open("pid", os.O_RDWR, unix.F_SETLK)
	open("read", os.O_RDONLY, unix.F_OFD_SETLK)
	if disk, err := podDisk(os.Getpid()); err != nil || disk != "" {
		t.Errorf("%q, %v; want no disk", disk, err)
	}
	open("disk", os.O_RDWR, unix.F_OFD_SETLK)
	if disk, err := podDisk(os.Getpid()); err != nil || disk != filepath.Join(dir, "disk") {
		t.Errorf("%q, %v; want the disk", disk, err)
	}
}

func TestWhichMountsGoWithAPod(t *testing.T) {
	got := podMounts(`1 0 0:1 / / rw - overlay none rw
2 1 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/scratch /scratch rw shared:1 master:2 - ext4 /dev/a rw
3 1 0:2 / /run/vm rw - tmpfs none rw
4 1 0:3 / /disk rw - nfs4 s:/a rw
5 1 8:2 / /kubernetes.io~empty-dir/a rw - xfs /dev/b rw
6
`)
	for mount, want := range map[string]bool{"1": true, "2": true, "3": true, "4": false, "5": false, "6": false} {
		if got[mount] != want {
			t.Errorf("mount %s: %v", mount, got[mount])
		}
	}
}

// Given a VM process, and one with more descriptors than are looked at. Then what could not be
// seen is an error, never "no disk".
func TestDisksThatCannotBeSeenAreNotKnown(t *testing.T) {
	w := given(t)
	if _, err := w.PodDisk("ns_none"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a VM that is not known: %v", err)
	}
	name, _ := w.directory(t, "")
	if _, err := w.PodDisk(name); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Errorf("a VM without a process: %v", err)
	}
	w.launch(t, name, drivertest.Polite)
	kit.Eventually(t, "the process is seen, without a disk", func() bool {
		disk, err := w.PodDisk(name)
		return err == nil && disk == ""
	})
	for range maxDescriptors + 1 {
		fd, err := unix.Dup(0)
		kit.Must(t, err)
		t.Cleanup(func() { kit.Must(t, unix.Close(fd)) })
	}
	if _, err := podDisk(os.Getpid()); !errors.Is(err, errTooMuch) {
		t.Errorf("%v, want too many", err)
	}
}
