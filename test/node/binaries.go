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

// CacheDir returns the directory for files that are slow to make. QEMU must be able to read
// it as any user, so it is not below a home directory. build.sh has the same default.
func CacheDir() string {
	if dir := os.Getenv("VMGRACE_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/vmgrace"
}

// GuestImage returns the paths of the test guest's kernel and initramfs. It makes them when
// they are needed first.
func GuestImage(t T) (kernel, initrd string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(moduleRoot(t), "test/guest/build.sh")).Output()
	if err != nil {
		t.Fatalf("test guest: %v%s", err, stderr(err))
	}
	dir := strings.TrimSpace(string(out))
	return filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")
}

// halt is a kernel that firmware can start (Multiboot 1). It halts the processor.
const halt = "\x02\xb0\xad\x1b" + "\x00\x00\x01\x00" + "\xfe\x4f\x51\xe4" + // magic, flag "addresses follow", checksum
	"\x00\x00\x10\x00" + "\x00\x00\x10\x00" + "\x24\x00\x10\x00" + "\x24\x00\x10\x00" + "\x20\x00\x10\x00" + // addresses: header, start, end of file, end of memory, entry
	"\xfa\xf4\xeb\xfc" // cli; hlt; jump back

// panics is such a kernel that tells the panic device (port 0x505) of a panic before.
const panics = "\x02\xb0\xad\x1b" + "\x00\x00\x01\x00" + "\xfe\x4f\x51\xe4" + // as above
	"\x00\x00\x10\x00" + "\x00\x00\x10\x00" + "\x2b\x00\x10\x00" + "\x2b\x00\x10\x00" + "\x20\x00\x10\x00" +
	"\x66\xba\x05\x05" + "\xb0\x01" + "\xee" + "\xfa\xf4\xeb\xfc" // mov dx, 0x505; mov al, 1; out dx, al; as above

// HaltImage returns the path of the image that a firmware guest boots.
func HaltImage(t T) string {
	t.Helper()
	return firmwareImage(t, "halt", halt)
}

func firmwareImage(t T, name, halt string) string {
	t.Helper()
	path := filepath.Join(CacheDir(), name)
	if readText(path) == halt {
		return path
	}
	if err := os.MkdirAll(CacheDir(), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	f, err := os.CreateTemp(CacheDir(), name+"-")
	if err == nil {
		_, err = f.WriteString(halt)
		err = errors.Join(err, f.Chmod(0o644), f.Close(), os.Rename(f.Name(), path))
	}
	if err != nil {
		t.Fatalf("a firmware guest's image: %v", err)
	}
	return path
}

// Binary returns the path of one of the project's two binaries, which has the race
// detector. It takes the binary from VMGRACE_BIN_DIR, where make test has just built it, or
// builds it.
func Binary(t T, name string) string {
	t.Helper()
	if dir := os.Getenv("VMGRACE_BIN_DIR"); dir != "" {
		return filepath.Join(dir, name)
	}
	return build(t, "bin/race/"+name)
}

// Shipped is Binary without the race detector. It is for measurements: of memory, and of
// the speed beside a process that takes a whole core.
func Shipped(t T, name string) string {
	t.Helper()
	return build(t, "bin/"+name)
}

// WithFailpoints returns the path of a node-agent with the race detector that dies at the
// failpoint that its environment names.
func WithFailpoints(t T) string {
	t.Helper()
	return build(t, "bin/race/failpoint/node-agent")
}

// goRace makes a binary exit at once with status 66 when it finds a race. It also removes
// the race detector's sleep at exit.
const goRace = "GORACE=halt_on_error=1 atexit_sleep_ms=0"

// wantNoRace fails the test where the race detector has found a race.
func (p *Process) wantNoRace(t T) {
	t.Helper()
	if log := p.Log(); strings.Contains(log, "WARNING: DATA RACE") {
		t.Fatalf("a data race:\n%s", log)
	}
}

// build runs make for a file and returns its path.
func build(t T, file string) string {
	t.Helper()
	root := moduleRoot(t)
	dir := filepath.Join(root, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("build: %v", err)
	}
	// Tests of several packages run at the same time, but only one may build.
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

// moduleRoot finds the directory with go.mod at or above the working directory. In a test
// the working directory is that of its package.
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

// stderr returns what a failed command wrote to stderr, for an error message.
func stderr(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return ": " + string(exit.Stderr)
	}
	return ""
}
