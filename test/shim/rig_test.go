package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// The package tests the shim's program from outside, as it is released.

// testTimeout bounds every wait. It says nothing about the speed of the shim.
const testTimeout = 30 * time.Second

const program = "github.com/vmgrace/vmgrace/cmd/launcher-shim"

// sources are the project's packages that the shim links.
var sources = []string{"api/launcherpod", "cmd/launcher-shim", "internal/shim", "internal/logs/writer", "pkg/grace", "pkg/process", "pkg/signals"}

// binary is the shim as it is released. TestMain builds it once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "launcher-shim-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "launcher-shim")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v1.2.3-test", "-o", binary, program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	code := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// output collects what a process writes. A test can read it while the process runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// shimProcess is one run of the binary.
type shimProcess struct {
	t      *testing.T
	dir    string
	cmd    *exec.Cmd
	stderr output
	ended  chan struct{}
}

// prepare makes a shim for ns/vm with UID u-1 and does not start it.
func prepare(t *testing.T, dir string, args ...string) *shimProcess {
	t.Helper()
	// The test cache knows only the files that a test opens. These reads show it the
	// sources of the binary. Without them a cached result would stand for another binary.
	for _, source := range sources {
		_, err := os.ReadDir(filepath.Join("../..", source))
		kit.Must(t, err)
	}
	s := &shimProcess{t: t, dir: dir, ended: make(chan struct{})}
	s.cmd = exec.Command(binary, append([]string{"--namespace", "ns", "--name", "vm", "--uid", "u-1", "--launcher-dir", dir}, args...)...)
	s.cmd.Stderr = &s.stderr
	s.cmd.WaitDelay = time.Second // a child of the shim may hold stderr open
	return s
}

func (s *shimProcess) start() *shimProcess {
	s.t.Helper()
	kit.Must(s.t, s.cmd.Start())
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // the tests read ProcessState
	}()
	s.t.Cleanup(func() {
		if s.running() { // kill the process groups of its children too
			for _, child := range children(s.t, s.cmd.Process.Pid) {
				_ = syscall.Kill(-child, syscall.SIGKILL)
			}
		}
		_ = s.cmd.Process.Kill() // it may have ended already
		s.wait()
		if s.t.Failed() {
			s.t.Logf("the shim said:\n%s", s.stderr.String())
		}
	})
	return s
}

// started starts a shim and waits until it is registered.
func started(t *testing.T, dir string, args ...string) *shimProcess {
	t.Helper()
	s := prepare(t, dir, args...).start()
	s.eventually("vm.json", func() bool { return s.there(signals.FileVM) })
	return s
}

func (s *shimProcess) eventually(what string, is func() bool) {
	s.t.Helper()
	kit.Eventually(s.t, what, is)
}

func (s *shimProcess) there(name string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, name))
	return err == nil
}

func (s *shimProcess) signal(sig syscall.Signal) {
	s.t.Helper()
	kit.Must(s.t, s.cmd.Process.Signal(sig))
}

func (s *shimProcess) trigger() signals.Trigger {
	s.t.Helper()
	s.eventually("the trigger", func() bool { return s.there(signals.FileTrigger) })
	content, err := os.ReadFile(filepath.Join(s.dir, signals.FileTrigger))
	kit.Must(s.t, err)
	var trigger signals.Trigger
	if err := json.Unmarshal(content, &trigger); err != nil || signals.TriggerUID(content) != trigger.UID {
		s.t.Errorf("the agent cannot read the trigger %q: %v", content, err)
	}
	return trigger
}

func (s *shimProcess) wait() {
	select {
	case <-s.ended:
	case <-time.After(testTimeout):
		s.t.Error("the shim does not end")
	}
}

// wantExit waits for the end and compares the exit status. A status of 128+n always comes
// from the command: ExitCode is -1 for a shim that a signal killed.
func (s *shimProcess) wantExit(status int) {
	s.t.Helper()
	s.wait()
	if got := s.cmd.ProcessState.ExitCode(); got != status {
		s.t.Errorf("exit status %d, want %d", got, status)
	}
}

func (s *shimProcess) running() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// holder returns the pid that holds the lock of vm.json, as this process sees it, or 0.
func (s *shimProcess) holder() int {
	s.t.Helper()
	f, err := os.Open(filepath.Join(s.dir, signals.FileVM))
	kit.Must(s.t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	kit.Must(s.t, unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock))
	if lock.Type == unix.F_UNLCK {
		return 0
	}
	return int(lock.Pid)
}

// vm starts a process that stands for the VM.
func vm(t *testing.T) (pid string, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	kit.Must(t, cmd.Start())
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // always an error after the kill
	})
	t.Cleanup(end)
	return strconv.Itoa(cmd.Process.Pid), end
}

// inPIDNamespace makes the shim PID 1 of a PID namespace with its own /proc.
func (s *shimProcess) inPIDNamespace() *shimProcess {
	script := `mount -t proc none /proc && exec "$@"`
	s.cmd.Path = "/bin/sh"
	s.cmd.Args = append([]string{"sh", "-c", script, "sh"}, s.cmd.Args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	return s
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}
