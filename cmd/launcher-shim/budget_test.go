package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

func TestTheBinaryIsSmallAndStatic(t *testing.T) {
	info, err := os.Stat(binary)
	must(t, err)
	t.Logf("%d bytes", info.Size())
	if info.Size() >= 2_500_000 {
		t.Errorf("%d bytes", info.Size())
	}
	f, err := elf.Open(binary)
	must(t, err)
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) != 0 {
		t.Errorf("it is linked with %v, %v", libs, err)
	}
}

func TestAnIdleShimIsSmall(t *testing.T) {
	pid, _ := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	s.staysFor(time.Second)
	for line := range strings.Lines(readFile(t, filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), "status"))) {
		fields := strings.Fields(line)
		if fields[0] != "VmRSS:" {
			continue
		}
		t.Log(strings.TrimSpace(line))
		if kib, err := strconv.Atoi(fields[1]); err != nil || kib >= 3584 {
			t.Errorf("VmRSS is %s kB, %v", fields[1], err)
		}
		return
	}
	t.Error("no VmRSS")
}

func TestAnIdleShimSleeps(t *testing.T) {
	pid, _ := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	s.eventually("registered", func() bool { return strings.Contains(s.stderr.String(), "watching") })
	s.staysFor(200 * time.Millisecond) // the runtime calms down
	before := switches(t, s.cmd.Process.Pid)
	s.staysFor(time.Second)
	if n := switches(t, s.cmd.Process.Pid) - before; n > 5 {
		t.Errorf("woke up %d times in a second", n)
	}
}

// switches counts how often any thread went to sleep.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/status"))
	must(t, err)
	for _, file := range files {
		_, rest, _ := strings.Cut(readFile(t, file), "\nvoluntary_ctxt_switches:")
		count, err := strconv.Atoi(strings.Fields(rest)[0])
		must(t, err)
		n += count
	}
	return n
}

// The best of some runs: a busy machine must not fail this, a slow shim must.
func TestItIsQuick(t *testing.T) {
	pid, _ := vm(t)
	registered, told := time.Hour, time.Hour
	for range 15 {
		s := prepare(t, t.TempDir(), "--pid", pid)
		begin := time.Now()
		s.start()
		for !s.there(signals.FileVM) && time.Since(begin) < patience {
		}
		registered = min(registered, time.Since(begin))
		s.eventually("registered", func() bool { return strings.Contains(s.stderr.String(), "watching") })
		begin = time.Now()
		s.signal(syscall.SIGTERM)
		for !s.there(signals.FileTrigger) && time.Since(begin) < patience {
		}
		told = min(told, time.Since(begin))
	}
	t.Logf("exec to vm.json %v, SIGTERM to trigger %v", registered, told)
	if registered > 10*time.Millisecond || told > time.Millisecond {
		t.Errorf("exec to vm.json %v (at most 10ms), SIGTERM to trigger %v (at most 1ms)", registered, told)
	}
}

func TestThePIDFileIsNoticedWithin100ms(t *testing.T) {
	best := time.Hour
	for range 4 {
		pid, end := vm(t)
		pidFile := filepath.Join(t.TempDir(), "pid")
		s := started(t, t.TempDir(), "--pid-file", pidFile)
		must(t, os.WriteFile(pidFile, []byte(pid), 0o600))
		begin := time.Now()
		s.eventually("the process is watched", func() bool { return strings.Contains(s.stderr.String(), "watching") })
		best = min(best, time.Since(begin))
		end()
		s.wantExit(0)
	}
	if t.Logf("noticed after %v", best); best > 100*time.Millisecond {
		t.Errorf("noticed after %v", best)
	}
}

func TestTheShimLinksOnlyWhatItNeeds(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	must(t, err)
	allowed := []string{"golang.org/x/sys/unix"}
	for _, source := range sources {
		allowed = append(allowed, "github.com/vmgrace/vmgrace/"+source)
	}
	for _, pkg := range strings.Fields(string(out)) {
		first, _, _ := strings.Cut(pkg, "/")
		if strings.Contains(first, ".") && !slices.Contains(allowed, pkg) {
			t.Errorf("the shim links %s", pkg)
		}
		if slices.Contains([]string{"log/slog", "os/exec", "net", "plugin", "runtime/cgo"}, pkg) {
			t.Errorf("the shim links %s, which is too large for it", pkg)
		}
	}
}
