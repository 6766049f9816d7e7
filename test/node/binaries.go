package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CacheDir keeps what is slow to make. QEMU must be able to read it as any
// user, so it is not below a home directory. build.sh has the same default.
func CacheDir() string {
	if dir := os.Getenv("VMGRACE_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/vmgrace"
}

// GuestImage returns the test guest's kernel and initramfs, made at first need.
func GuestImage(t T) (kernel, initrd string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(moduleRoot(t), "test/guest/build.sh")).Output()
	if err != nil {
		t.Fatalf("test guest: %v%s", err, stderr(err))
	}
	dir := strings.TrimSpace(string(out))
	return filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")
}

// halt is what firmware can start as a kernel (Multiboot 1): it halts the processor.
const halt = "\x02\xb0\xad\x1b" + "\x00\x00\x01\x00" + "\xfe\x4f\x51\xe4" + // magic, "addresses follow", checksum
	"\x00\x00\x10\x00" + "\x00\x00\x10\x00" + "\x24\x00\x10\x00" + "\x24\x00\x10\x00" + "\x20\x00\x10\x00" + // header, begin, end of the file, of memory, entry
	"\xfa\xf4\xeb\xfc" // cli; hlt; and again

// HaltImage returns what a firmware guest boots.
func HaltImage(t T) string {
	t.Helper()
	path := filepath.Join(CacheDir(), "halt")
	if readText(path) == halt {
		return path
	}
	if err := os.MkdirAll(CacheDir(), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	f, err := os.CreateTemp(CacheDir(), "halt-")
	if err == nil {
		_, err = f.WriteString(halt)
		err = errors.Join(err, f.Chmod(0o644), f.Close(), os.Rename(f.Name(), path))
	}
	if err != nil {
		t.Fatalf("a firmware guest's image: %v", err)
	}
	return path
}

// Binary returns the path of one of the project's two binaries. They are taken
// from VMGRACE_BIN_DIR (make test has just built them) or built, with the race
// detector.
func Binary(t T, name string) string {
	t.Helper()
	if dir := os.Getenv("VMGRACE_BIN_DIR"); dir != "" {
		return filepath.Join(dir, name)
	}
	return build(t, "bin/race/"+name)
}

// Shipped is Binary without the race detector, for what is measured: memory,
// and how quick it is beside somebody who takes all of a core.
func Shipped(t T, name string) string {
	t.Helper()
	return build(t, "bin/"+name)
}

// WithFailpoints returns the path of a node-agent that dies at the point that its
// environment names, and has the race detector.
func WithFailpoints(t T) string {
	t.Helper()
	return build(t, "bin/race/failpoint/node-agent")
}

// goRace has a binary that finds a race end at once, with status 66, and one that
// finds none not sleep at its end.
const goRace = "GORACE=halt_on_error=1 atexit_sleep_ms=0"

// wantNoRace fails the test where the race detector has found something.
func (p *Process) wantNoRace(t T) {
	t.Helper()
	if log := p.Log(); strings.Contains(log, "WARNING: DATA RACE") {
		t.Fatalf("a data race:\n%s", log)
	}
}

// build has make build a file, which it returns the path of.
func build(t T, file string) string {
	t.Helper()
	root := moduleRoot(t)
	dir := filepath.Join(root, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("build: %v", err)
	}
	// Tests of several packages run at once: one build at a time.
	lock, err := os.Open(dir)
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", dir, err)
	}
	if out, err := exec.CommandContext(t.Context(), "make", "-s", "-C", root, file).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", file, err, out)
	}
	return filepath.Join(root, file)
}

// moduleRoot finds go.mod above the working directory, which in a test is its package's.
func moduleRoot(t T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		err = fmt.Errorf("no go.mod at or above %s", dir)
	}
	t.Fatalf("module root: %v", err)
	return ""
}

// stderr is what a command that failed has said, for a message.
func stderr(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return ": " + string(exit.Stderr)
	}
	return ""
}
