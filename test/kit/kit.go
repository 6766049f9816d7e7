// Package kit is what tests of every kind need: to give up on an error, to write a
// file, to wait for something, and a disk of their own. What needs a node with
// libvirt is in test/node.
package kit

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// T is the part of *testing.T that this package uses. Fatalf must not return.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(f func())
	TempDir() string
}

// waitTimeout is how long anything without a promise may take on a busy machine.
const waitTimeout = 30 * time.Second

// Must fails the test on an error.
func Must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Write makes a file, readable for all.
func Write(t T, path, content string) {
	t.Helper()
	Must(t, os.WriteFile(path, []byte(content), 0o644))
}

// Eventually waits until something is so. It rests for as long as is takes: one that
// runs a command would keep a core busy.
func Eventually(t T, what string, is func() bool) {
	t.Helper()
	for end, asked := time.Now().Add(waitTimeout), time.Now(); !is(); asked = time.Now() {
		now := time.Now()
		if now.After(end) {
			t.Fatalf("not within %v: %s", waitTimeout, what)
		}
		<-time.After(max(time.Millisecond, now.Sub(asked)))
	}
}

// Tmpfs mounts a file system of the test's own, for as long as it runs, and
// returns where. Options are those of tmpfs(5): "size=64k". Needs root.
func Tmpfs(t T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("vmgrace-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() { Must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
