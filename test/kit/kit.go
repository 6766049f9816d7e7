// Package kit has helpers for all kinds of tests: to end on an error, to write a file, to
// wait for a condition, and to mount a file system. Helpers that need a node with libvirt
// are in test/node.
package kit

import (
	"os"
	"syscall"
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

// waitTimeout bounds waits without a promised time, on a busy machine.
const waitTimeout = 30 * time.Second

// Must ends the test on an error.
func Must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Write writes a file that everybody can read.
func Write(t T, path, content string) {
	t.Helper()
	Must(t, os.WriteFile(path, []byte(content), 0o644))
}

// Program writes a program. Nobody starts another one meanwhile: a process that has not become its
// program yet holds all files that are open here, and what somebody may write to cannot be run.
func Program(t T, path, content string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	Must(t, os.WriteFile(path, []byte(content), 0o755))
}

// Eventually waits until is returns true. Between two calls it sleeps for as long as the
// last call took, because an is that runs a command would keep a core busy otherwise.
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

// Tmpfs mounts a tmpfs until the test ends and returns its directory. options are those of
// tmpfs(5), such as "size=64k". Tmpfs needs root.
func Tmpfs(t T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("vmgrace-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() { Must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
