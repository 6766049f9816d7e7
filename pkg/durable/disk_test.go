//go:build !unit

package durable

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

// These run on real file systems in a bad state, and so as root.

func TestFullDiskLeavesTheOldContentAndRecoversByItself(t *testing.T) {
	for name, options := range map[string]string{"no blocks": "size=64k", "no inodes": "nr_inodes=3"} {
		t.Run(name, func(t *testing.T) {
			dir := kit.Tmpfs(t, options)
			if err := Real().WriteFile(dir, "a", []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			// given: nothing is left
			filler := filepath.Join(dir, "filler")
			if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); name == "no blocks" && err == nil {
				t.Fatal("the disk did not fill")
			}
			// when, then
			data := bytes.Repeat([]byte("n"), 8192)
			if err := Real().WriteFile(dir, "a", data, 0o600); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("error %v, want ENOSPC", err)
			}
			wantContent(t, filepath.Join(dir, "a"), "old")
			wantNames(t, dir, "a", "filler")

			if err := Real().Remove(dir, "filler"); err != nil {
				t.Fatalf("remove on a full disk: %v", err)
			}
			if err := Real().WriteFile(dir, "a", data, 0o600); err != nil {
				t.Errorf("write after space was made: %v", err)
			}
			wantContent(t, filepath.Join(dir, "a"), string(data))
		})
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := kit.Tmpfs(t, "size=64k")
	if err := Real().WriteFile(dir, "a", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := Real().WriteFile(dir, "a", []byte("new"), 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v, want EROFS", err)
	}
	if err := Real().Remove(dir, "a"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("remove: %v, want EROFS", err)
	}
	if err := Real().MkdirAll(dir, 0o700); err != nil {
		t.Errorf("the directory exists, but: %v", err)
	}
	wantContent(t, filepath.Join(dir, "a"), "old")
}

func TestUnwritableDirectory(t *testing.T) {
	dir := newDir(t)
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Real().WriteFile(dir, "a", []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	write, remove := asNobody(func() error { return Real().WriteFile(dir, "a", []byte("new"), 0o600) }),
		asNobody(func() error { return Real().Remove(dir, "a") })
	if !errors.Is(write, fs.ErrPermission) {
		t.Errorf("write: %v, want ErrPermission", write)
	}
	if !errors.Is(remove, fs.ErrPermission) {
		t.Errorf("remove: %v, want ErrPermission", remove)
	}
	wantContent(t, filepath.Join(dir, "a"), "old")
	wantNames(t, dir, "a")
}

// asNobody runs do without root's rights on files. setfsuid(2) concerns one thread; it
// stays locked to the goroutine and ends with it.
func asNobody(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			result <- err
			return
		}
		result <- do()
	}()
	return <-result
}
