package shim

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/kit"
)

func TestTheBinaryIsSmallAndStatic(t *testing.T) {
	info, err := os.Stat(binary)
	kit.Must(t, err)
	t.Logf("%d bytes", info.Size())
	if info.Size() >= 5_000_000 {
		t.Errorf("%d bytes", info.Size())
	}
	f, err := elf.Open(binary)
	kit.Must(t, err)
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) != 0 {
		t.Errorf("it is linked with %v, %v", libs, err)
	}
}

func TestAnIdleShimIsSmall(t *testing.T) {
	pid, _ := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	s.staysFor(time.Second)
	wantSmall(t, s.cmd.Process.Pid)
}

func wantSmall(t *testing.T, pid int) {
	t.Helper()
	for line := range strings.Lines(readFile(t, filepath.Join("/proc", strconv.Itoa(pid), "status"))) {
		fields := strings.Fields(line)
		if fields[0] != "VmRSS:" {
			continue
		}
		t.Log(strings.TrimSpace(line))
		if kib, err := strconv.Atoi(fields[1]); err != nil || kib >= 6<<10 {
			t.Errorf("VmRSS is %s kB, %v", fields[1], err)
		}
		return
	}
	t.Error("no VmRSS")
}

func TestAnIdleShimSleeps(t *testing.T) {
	pid, _ := vm(t)
	for name, target := range map[string][]string{
		"a process":      {"--pid", pid},
		"no process":     {"--pid-file", filepath.Join(t.TempDir(), "never")},
		"a command":      {"--", "sleep", "300"},
		"a guest to ask": {"--ask-with", "exec:true", "--", "sleep", "300"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Given a shim that has nothing to do.
			s := started(t, t.TempDir(), target...)
			s.staysFor(time.Second) // the Go runtime finishes its start
			// When time passes.
			before := switches(t, s.cmd.Process.Pid)
			s.staysFor(5 * time.Second)
			// Then it sleeps, except for short looks for a request of the agent. A shim
			// that wakes more often would take processor time from the VMs.
			if n := switches(t, s.cmd.Process.Pid) - before; n > 2*5 {
				t.Errorf("its threads were switched %d times in 5 s", n)
			}
		})
	}
}

// switches returns how often the threads of a process went to sleep.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/status"))
	kit.Must(t, err)
	for _, file := range files {
		_, rest, _ := strings.Cut(readFile(t, file), "\nvoluntary_ctxt_switches:")
		count, err := strconv.Atoi(strings.Fields(rest)[0])
		kit.Must(t, err)
		n += count
	}
	return n
}

func TestTheShimLinksOnlyWhatItNeeds(t *testing.T) {
	list := exec.Command("go", "list", "-deps", program)
	list.Env = append(os.Environ(), "CGO_ENABLED=0") // as the release is built
	out, err := list.Output()
	kit.Must(t, err)
	allowed := []string{"golang.org/x/sys/unix", "github.com/fsnotify/fsnotify", "github.com/fsnotify/fsnotify/internal"}
	for _, source := range sources {
		allowed = append(allowed, "github.com/vmgrace/vmgrace/"+source)
	}
	for _, pkg := range strings.Fields(string(out)) {
		first, _, _ := strings.Cut(pkg, "/")
		if strings.Contains(first, ".") && !slices.Contains(allowed, pkg) {
			t.Errorf("the shim links %s", pkg)
		}
		if slices.Contains([]string{"log/slog", "net/http", "plugin", "runtime/cgo"}, pkg) {
			t.Errorf("the shim links %s, which is too large for it", pkg)
		}
	}
}
