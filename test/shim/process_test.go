package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/kit"
)

func TestExitStatusIsTheCommands(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "exit 255": 255, "kill -KILL $$": 137, "kill -SEGV $$": 139} {
		s := prepare(t, t.TempDir(), "--", "sh", "-c", script).start()
		s.wantExit(want)
		if names := dirNames(t, s.dir); names != "" {
			t.Errorf("%s left %s", script, names)
		}
	}
}

func TestACommandThatCannotBeStartedIsOneClearLine(t *testing.T) {
	notExecutable := filepath.Join(t.TempDir(), "file")
	kit.Must(t, os.WriteFile(notExecutable, nil, 0o600))
	for command, want := range map[string]string{
		"no-such-command-here": "not found in $PATH", "/no/such/file": "no such file", notExecutable: "permission denied",
	} {
		s := prepare(t, t.TempDir(), "--", command).start()
		s.wantExit(1)
		if got := s.stderr.String(); !strings.Contains(got, "start "+command+": ") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", command, got)
		}
		if names := dirNames(t, s.dir); names != "" {
			t.Errorf("%s left %s", command, names)
		}
	}
}

func TestTheCommandIsStartedWithItsArgumentsAndEnvironment(t *testing.T) {
	command := []string{"sh", "-c", `echo "$0 $1 $FROM_POD"; ls /proc/$$/fd`, "--pid", "a b"}
	t.Setenv("FROM_POD", "x")
	s := prepare(t, t.TempDir(), append([]string{"--"}, command...)...)
	var out output
	s.cmd.Stdout = &out
	s.start().wantExit(0)
	plain, err := exec.Command(command[0], command[1:]...).Output()
	kit.Must(t, err)
	if got := out.String(); got != string(plain) || !strings.HasPrefix(got, "--pid a b x\n") {
		t.Errorf("arguments, environment and open files are %q, without the shim %q", got, plain)
	}
}

func TestAWatchedProcessThatEndsOrHasEndedGivesZero(t *testing.T) {
	pid, end := vm(t)
	s := started(t, t.TempDir(), "--pid", pid)
	end()
	s.wantExit(0)
	dead := prepare(t, t.TempDir(), "--pid", pid).start()
	dead.wantExit(0)
	if names := dirNames(t, s.dir) + dirNames(t, dead.dir); names != "" {
		t.Errorf("left: %s", names)
	}
}

func TestAZombieHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	kit.Must(t, cmd.Start()) // and nobody waits for it
	defer func() { kit.Must(t, cmd.Wait()) }()
	prepare(t, t.TempDir(), "--pid", strconv.Itoa(cmd.Process.Pid)).start().wantExit(0)
}

func TestAThreadIsNoProcess(t *testing.T) {
	tasks, err := os.ReadDir("/proc/self/task")
	kit.Must(t, err)
	s := prepare(t, t.TempDir(), "--pid", tasks[len(tasks)-1].Name()).start()
	s.wantExit(1)
	if !strings.Contains(s.stderr.String(), "pidfd_open") {
		t.Error(s.stderr.String())
	}
}

func TestADeadPIDInThePIDFileHasEnded(t *testing.T) {
	pid, end := vm(t)
	end()
	pidFile := filepath.Join(t.TempDir(), "pid")
	kit.Must(t, os.WriteFile(pidFile, []byte(pid), 0o600))
	prepare(t, t.TempDir(), "--pid-file", pidFile).start().wantExit(0)
}

func TestInvalidPIDFilesAreWaitedOutWithOneLine(t *testing.T) {
	pid, end := vm(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	s := started(t, t.TempDir(), "--pid-file", pidFile)
	lines := func() int { return strings.Count(s.stderr.String(), "pid file") }
	for i, content := range []string{"soon\n", "0\n", "-1\n", "99999999999999\n", strings.Repeat("1", 1000), strconv.Itoa(s.cmd.Process.Pid) + "\n"} {
		kit.Must(t, os.WriteFile(pidFile+".x", []byte(content), 0o600))
		kit.Must(t, os.Rename(pidFile+".x", pidFile))
		s.eventually(fmt.Sprintf("a line about %.20q", content), func() bool { return lines() > i })
		s.staysFor(100 * time.Millisecond)
		if lines() != i+1 {
			t.Errorf("%.20q: %s", content, s.stderr.String())
		}
	}
	kit.Must(t, os.Remove(pidFile))
	kit.Must(t, syscall.Mkfifo(pidFile, 0o600))
	s.eventually("a line about the FIFO", func() bool { return strings.Contains(s.stderr.String(), "not a regular file") })
	kit.Must(t, os.WriteFile(pidFile+".x", []byte(pid), 0o600))
	kit.Must(t, os.Rename(pidFile+".x", pidFile))
	s.eventually("the process is watched", func() bool { return strings.Contains(s.stderr.String(), "watching process "+pid) })
	end()
	s.wantExit(0)
}

func TestASupervisorThatForksAndExitsEndsTheShim(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left")
	s := prepare(t, t.TempDir(), "--", "sh", "-c", `sleep 300 </dev/null >/dev/null 2>&1 & echo $! > "$0"; exit 5`, left).start()
	s.wantExit(5)
	pid, err := strconv.Atoi(readFile(t, left))
	kit.Must(t, err)
	kit.Must(t, syscall.Kill(pid, syscall.SIGKILL)) // the shim did not kill it
}

// children returns the pids of the child processes, including zombies.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	kit.Must(t, err)
	for _, path := range stats {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		_, rest, _ := strings.Cut(string(content), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			kit.Must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func dirNames(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	kit.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
