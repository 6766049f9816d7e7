package shim

import (
	"bytes"
	"errors"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// cmd/launcher-shim tests the behaviour, on the real binary. These tests cover the rest:
// goroutines, the race detector, and pure functions.

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	kit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed: always an error
	})
	return cmd
}

// runInProcess gives Run a signal channel of the test's and no SIGCHLD, so that Run does
// not reap the test's children.
func runInProcess(t *testing.T, config Config) (requests chan<- os.Signal, status <-chan int) {
	t.Helper()
	config.VM = signals.VM{Namespace: "ns", Name: "vm", UID: "u-1"}
	channel, ended := make(chan os.Signal, 1), make(chan int, 1)
	go func() { ended <- Run(config, Signals{Requests: channel}, log.New(&bytes.Buffer{}, "", 0)) }()
	return channel, ended
}

func wantStatus(t *testing.T, ended <-chan int, want int) {
	t.Helper()
	select {
	case got := <-ended:
		if got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Run does not end")
	}
}

func exists(path ...string) func() bool {
	return func() bool { _, err := os.Lstat(filepath.Join(path...)); return err == nil }
}

func TestEveryEndOfRunLeavesNoGoroutineAndNoFile(t *testing.T) {
	defer goleak.VerifyNone(t)
	before := openFiles(t)
	t.Run("the process ends", func(t *testing.T) {
		vm, dir := sleeper(t), t.TempDir()
		requests, ended := runInProcess(t, Config{Dir: dir, PID: vm.Process.Pid})
		kit.Eventually(t, "vm.json", exists(dir, signals.FileVM))
		requests <- unix.SIGTERM
		kit.Eventually(t, "the trigger", exists(dir, signals.FileTrigger))
		kit.Must(t, vm.Process.Kill())
		wantStatus(t, ended, 0)
	})
	t.Run("the agent says Stopped", func(t *testing.T) {
		dir := t.TempDir()
		requests, ended := runInProcess(t, Config{Dir: dir, PIDFile: filepath.Join(dir, "none")})
		requests <- unix.SIGTERM
		kit.Eventually(t, "the trigger", exists(dir, signals.FileTrigger))
		kit.Must(t, os.WriteFile(filepath.Join(dir, signals.FileStatus), signals.EncodeStatus(grace.Status{UID: "u-1", Phase: grace.Stopped}), 0o600))
		wantStatus(t, ended, 0)
	})
	t.Run("the process is another", func(t *testing.T) {
		vm, dir := sleeper(t), t.TempDir()
		pidFile, ago := filepath.Join(dir, "pid"), time.Now().Add(-time.Hour)
		kit.Must(t, os.WriteFile(pidFile, []byte(strconv.Itoa(vm.Process.Pid)+"\n"), 0o600))
		kit.Must(t, os.Chtimes(pidFile, ago, ago))
		_, ended := runInProcess(t, Config{Dir: dir, PIDFile: pidFile})
		wantStatus(t, ended, 0)
	})
	t.Run("the command is not there", func(t *testing.T) {
		_, ended := runInProcess(t, Config{Dir: t.TempDir(), Command: []string{"/no/such/file"}})
		wantStatus(t, ended, 1)
	})
	// Check at once: later the garbage collector closes forgotten files.
	if now := openFiles(t); now > before {
		t.Errorf("%d files are still open", now-before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	kit.Must(t, err)
	n := 0
	for _, fd := range fds {
		// Not the runtime's own, which come at first use.
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && (strings.HasPrefix(target, "/tmp") || strings.Contains(target, "pidfd")) {
			n++
		}
	}
	return n
}

func TestGracePeriodsOfTheCommandLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0": "0", "30": "30", "007": "7", "9223372036854775807": "9223372036854775807",
		"1500ms": "2", "1ns": "1", "0s": "0", "1m30s": "90", "2562047h47m16.854775807s": "9223372037",
	} {
		if got, err := wholeSeconds(text); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
		if want != "" {
			if _, err := grace.ParseSeconds(want); err != nil && !errors.Is(err, grace.ErrTooLong) {
				t.Errorf("the agent rejects %q: %v", want, err)
			}
		}
	}
	for _, text := range []string{"-1", "-0", "-1s", "x", "1.5", "1e3", " 30", "30 ", "0x10", "9223372036854775808", "+5", "s", "٣"} {
		if got, err := wholeSeconds(text); err == nil {
			t.Errorf("%q was read as %q", text, got)
		}
	}
}

func TestAFlagWinsOverTheEnvironment(t *testing.T) {
	env := map[string]string{"VM_NAMESPACE": "e", "VM_NAME": "e", "VM_UID": "e", "VM_GRACE_PERIOD_SECONDS": "bad"}
	c, err := ParseConfig([]string{"--name", "f", "-uid=f", "--grace-period=5", "--", "qemu", "--pid", "1"}, func(key string) string { return env[key] })
	if want := (signals.VM{Namespace: "e", Name: "f", UID: "f", Grace: "5"}); err != nil || c.VM != want || strings.Join(c.Command, " ") != "qemu --pid 1" {
		t.Errorf("%+v, %v", c, err)
	}
	if c.Dir != "/var/run/vmgrace/launcher" {
		t.Errorf("the directory is %s", c.Dir)
	}
}

func TestAPIDWithoutANewlineIsReadTwice(t *testing.T) {
	p := pidFile{path: filepath.Join(t.TempDir(), "pid")}
	for _, step := range []struct {
		content string
		want    int
	}{{"", 0}, {"12", 0}, {"1234", 0}, {"1234", 1234}, {"56\n", 56}, {"", 0}, {"1234", 0}} {
		kit.Must(t, os.WriteFile(p.path, []byte(step.content), 0o600))
		if pid, _, err := p.read(); err != nil || pid != step.want {
			t.Errorf("%q: %d, %v; want %d", step.content, pid, err, step.want)
		}
	}
}

func FuzzPIDFile(f *testing.F) {
	f.Add("12\n")
	f.Fuzz(func(t *testing.T, text string) {
		if pid, err := parsePID(text); err == nil && (pid <= 0 || pid == os.Getpid()) {
			t.Errorf("%q: %d", text, pid)
		}
	})
}

func TestAProcessIsYoungerOnlyWhereItIsClear(t *testing.T) {
	start, err := process.Start(sleeper(t).Process.Pid)
	kit.Must(t, err)
	for written, want := range map[time.Time]bool{
		time.Now(): false, time.Now().Add(-time.Second): false, time.Now().Add(time.Hour): false, time.Now().Add(-time.Minute): true,
	} {
		if got := startedAfter(start, written); got != want {
			t.Errorf("written %v ago: %v", time.Since(written), got)
		}
	}
	if startedAfter(0, time.Now().Add(-time.Hour)) {
		t.Error("a process that cannot be read is not known to be younger")
	}
}

// Given a VM process that the agent destroys at its deadline, or a guest that ends by itself,
// when its shim ends, then only the former is told as the container's termination message.
func TestAGuestThatWasDestroyedIsTold(t *testing.T) {
	for outcome, want := range map[grace.Outcome]string{grace.Forced: launcherpod.EndForced, grace.Graceful: ""} {
		vm, dir := sleeper(t), t.TempDir()
		config := Config{Dir: dir, PID: vm.Process.Pid, TerminationLog: filepath.Join(t.TempDir(), "termination-log")}
		kit.Must(t, os.WriteFile(config.TerminationLog, nil, 0o600))
		_, ended := runInProcess(t, config)
		kit.Eventually(t, "its registration", exists(dir, signals.FileVM))
		status := func(phase grace.Phase, more string) {
			kit.Must(t, os.WriteFile(filepath.Join(dir, "new"), []byte(`{"version":1,"uid":"u-1","phase":"`+string(phase)+`","cause":"VMIDeleted"`+more+`}`), 0o600))
			kit.Must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, signals.FileStatus)))
		}
		status(grace.ShuttingDown, "")
		kit.Must(t, vm.Process.Kill())
		_ = vm.Wait() // killed: always an error
		status(grace.Stopped, `,"outcome":"`+string(outcome)+`"`)
		wantStatus(t, ended, 0)
		if got, err := os.ReadFile(config.TerminationLog); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", outcome, got, err)
		}
	}
}
