package shim

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// stopped is the agent's word about a VM of libvirt's that has ended by itself.
func stopped(outcome grace.Outcome, end grace.End, at time.Time) grace.Status {
	return grace.Status{UID: "u-1", Phase: grace.Stopped, Outcome: outcome, End: end, EndedAt: at}
}

func TestAVMThatEndsByItselfEndsItsLauncher(t *testing.T) {
	for name, c := range map[string]struct {
		outcome grace.Outcome
		end     grace.End
		status  int
	}{
		"powered off":           {grace.AlreadyStopped, "", 0},
		"destroyed":             {grace.Lost, grace.EndDestroyed, 0},
		"crashed":               {grace.Lost, grace.EndCrashed, 1},
		"shut down for its VMI": {grace.Graceful, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Given a launcher of libvirt's kind, whose VM runs.
			dir := t.TempDir()
			s := started(t, dir, "--pid-file", filepath.Join(dir, "never"))
			says(t, dir, grace.Status{UID: "u-1", Phase: grace.Running})
			// When the VM ends, and the launcher was not signalled.
			end := stopped(c.outcome, c.end, time.Now())
			if c.outcome == grace.Graceful {
				end.Cause = grace.VMIDeleted
			}
			begin := time.Now()
			says(t, dir, end)
			// Then the launcher ends, once no other instance has come for 5 s.
			s.wantExit(c.status)
			if took := time.Since(begin); took < 5*time.Second {
				t.Errorf("it ended after %v", took)
			}
			if s.there(signals.FileVM) || s.there(signals.FileTrigger) {
				t.Error("it left vm.json or a trigger")
			}
		})
	}
}

// Given a launcher of libvirt's kind whose VM has ended. When another instance appears within
// 5 s, then the launcher stays until the end of that one.
func TestAVMThatIsStartedAgainKeepsItsLauncher(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := started(t, dir, "--pid-file", filepath.Join(dir, "never"))
	says(t, dir, stopped(grace.Lost, grace.EndCrashed, time.Now()))
	s.staysFor(3 * time.Second)
	says(t, dir, grace.Status{UID: "u-1", Phase: grace.Running})
	s.staysFor(3 * time.Second)
	says(t, dir, stopped(grace.AlreadyStopped, "", time.Now()))
	s.staysFor(3 * time.Second)
	s.wantExit(0)
}

// Given a launcher of libvirt's kind. When its VM is saved, then the launcher says that it
// waits for the VM's return, and ends with the restored one, or if it is signalled.
func TestASavedVMIsWaitedFor(t *testing.T) {
	for name, then := range map[string]func(*shimProcess){
		"restored":  func(s *shimProcess) { says(s.t, s.dir, stopped(grace.AlreadyStopped, "", time.Now())) },
		"signalled": func(s *shimProcess) { s.signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := started(t, dir, "--pid-file", filepath.Join(dir, "never"))
			says(t, dir, stopped(grace.Lost, grace.EndSaved, time.Now()))
			s.eventually("it says so", func() bool { return strings.Contains(s.stderr.String(), "was saved: waiting for its return") })
			s.staysFor(6 * time.Second)
			then(s)
			s.wantExit(0)
		})
	}
}

// Given a container that its pod's restartPolicy has started again. When its VM was shut down
// for good or has left, then its command is not started. Otherwise the guest would boot again,
// unasked, or a second time. When the VM has ended in another way, then the command is
// started: the restart is what the user wants.
func TestOnlyAVMThatIsToStayOffIsNotStartedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		cause   grace.Cause
		outcome grace.Outcome
		off     bool
	}{
		"the VMI was deleted":     {grace.VMIDeleted, grace.Graceful, true},
		"it runs elsewhere":       {grace.NodeFenced, grace.Forced, true},
		"it has moved":            {"", grace.Migrated, true},
		"it powered off":          {"", grace.AlreadyStopped, false},
		"it crashed":              {"", grace.Lost, false},
		"a liveness probe failed": {grace.LauncherSignal, grace.Graceful, false},
		"the shim was killed":     {grace.LauncherDied, grace.Forced, false},
		"the node was shut down":  {grace.NodeShutdown, grace.Graceful, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, began := t.TempDir(), filepath.Join(t.TempDir(), "began")
			says(t, dir, grace.Status{UID: "u-1", Phase: grace.Stopped, Cause: c.cause, Outcome: c.outcome, EndedAt: time.Now()})
			s := prepare(t, dir, "--ask-with", "exec:true", "--", "sh", "-c", `: > "$0"; exit 3`, began).start()
			if c.off {
				s.wantExit(0)
			} else {
				s.wantExit(3)
			}
			if _, err := os.Stat(began); (err == nil) == c.off {
				t.Errorf("the command was started: %v", err == nil)
			}
			if said := strings.Contains(s.stderr.String(), "it is not started again"); said != c.off {
				t.Errorf("it said %q", s.stderr.String())
			}
		})
	}
	t.Run("of another VM", func(t *testing.T) {
		dir := t.TempDir()
		says(t, dir, grace.Status{UID: "u-2", Phase: grace.Stopped, Cause: grace.VMIDeleted, Outcome: grace.Graceful})
		prepare(t, dir, "--", "sh", "-c", "exit 3").start().wantExit(3)
	})
}

func TestThePIDFileOfTheContainerBeforeIsNotBelieved(t *testing.T) {
	other, _ := vm(t)
	dead, end := vm(t)
	end()
	for name, pid := range map[string]string{"a pid that is gone": dead, "the pid of another process": other} {
		for written, age := range map[string]time.Duration{"just now": 0, "long ago": time.Hour} {
			t.Run(name+", "+written, func(t *testing.T) {
				t.Parallel()
				// Given a pid file in a volume that the container before has left.
				file := filepath.Join(t.TempDir(), "pid")
				kit.Must(t, os.WriteFile(file, []byte(pid+"\n"), 0o600))
				kit.Must(t, os.Chtimes(file, time.Now().Add(-age), time.Now().Add(-age)))
				// When the container is started again, and its command takes a while.
				s := started(t, t.TempDir(), "--ask-with", "exec:true", "--pid-file", file, "--", script(t,
					"sleep 0.3; sleep 300 & echo $! >"+file+"; wait"))
				// Then the process that the command names is the VM.
				s.eventually("the VM process's pid", func() bool { return s.vm().PID != 0 })
				if want := readFile(t, file); want == pid || want != strconv.Itoa(s.vm().PID) {
					t.Errorf("it watches %d, the pid file says %s", s.vm().PID, want)
				}
			})
		}
	}
}

// Given a command that becomes a daemon, as qemu -daemonize -pidfile does, and a shim that has
// not heard of the pid file. When the command ends, then the daemon is the VM, however its pid
// is written.
func TestACommandThatBecomesADaemonIsNotTheVM(t *testing.T) {
	for _, format := range []string{"%d\\n", "%d"} {
		file := filepath.Join(t.TempDir(), "not/yet/pid")
		s := prepare(t, t.TempDir(), "--ask-with", "exec:true", "--pid-file", file, "--", script(t,
			`mkdir -p `+filepath.Dir(file)+`; sleep 300 </dev/null >/dev/null 2>&1 & printf '`+format+`' $! >`+file)).start()
		s.eventually("the daemon's pid", func() bool { return s.there(signals.FileVM) && s.vm().PID != 0 })
		pid := readFile(t, file)
		s.watches(pid)
		s.staysFor(100 * time.Millisecond)
		kit.Must(t, syscall.Kill(s.vm().PID, syscall.SIGKILL))
		s.wantExit(0)
	}
}
