//go:build !unit

package shim

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestOrphansAreReaped(t *testing.T) {
	for name, inside := range map[string]bool{"as PID 1": true, "as a subreaper": false} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			// Each orphan waits until its parent has ended, writes who its new parent is,
			// and ends.
			script := `for i in 1 2 3 4 5; do sh -c '(while [ -d "${0%/*}" ] && [ ! -e "$0.go" ]; do sleep 0.01; done
				exec sh -c "cut -d\  -f4 /proc/\$\$/stat >> \"\$0\"" "$0") & exit 0' "$0"; done
				echo $$ > "$0.go"; while [ -e "$0.go" ] && [ ! -e "$0.end" ]; do sleep 0.05; done; exit 9`
			s := prepare(t, t.TempDir(), "--", "sh", "-c", script, out)
			want := ""
			if inside {
				s.inPIDNamespace()
				want = strings.Repeat("1 ", 5)
			}
			s.start()
			if !inside {
				want = strings.Repeat(strconv.Itoa(s.cmd.Process.Pid)+" ", 5)
			}
			s.eventually("five orphans with the shim for a parent", func() bool {
				return strings.Join(strings.Fields(readFile(t, out)), " ") == strings.TrimSpace(want)
			})
			s.eventually("only the command is left", func() bool { return len(children(t, s.cmd.Process.Pid)) == 1 })
			kit.Must(t, os.WriteFile(out+".end", nil, 0o600))
			s.wantExit(9)
		})
	}
}

func TestTheLockOfAShimAsPIDOneIsSeenFromOutside(t *testing.T) {
	s := prepare(t, t.TempDir(), "--", "sleep", "300").inPIDNamespace().start()
	s.eventually("vm.json", func() bool { return s.there(signals.FileVM) })
	if got := s.holder(); got != s.cmd.Process.Pid {
		t.Errorf("the lock is held by %d, want the translated pid %d", got, s.cmd.Process.Pid)
	}
	s.signal(syscall.SIGTERM)
	s.trigger()
	s.staysFor(50 * time.Millisecond)
	s.signal(syscall.SIGKILL)
	s.wait()
	if !s.there(signals.FileVM) || s.holder() != 0 {
		t.Error("after SIGKILL vm.json is there and unlocked")
	}
}

// Given a launcher that gets no inotify instance: a user has 128 of them, which other
// processes may have taken. When the agent sends requests, then the shim still asks the
// guest, because it also looks for requests every second. Otherwise the guest would be
// killed at its deadline without being asked.
func TestALauncherWithoutInotifyAsksItsGuest(t *testing.T) {
	did := filepath.Join(t.TempDir(), "did")
	s := prepare(t, t.TempDir(), "--ask-with", "exec:"+script(t, "echo x >>"+did), "--", "sleep", "300")
	none := `echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"`
	s.cmd.Path, s.cmd.Args = "/bin/sh", append([]string{"sh", "-c", none, "sh"}, s.cmd.Args...)
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	s.start()
	s.eventually("the VM process's pid", func() bool { return s.there(signals.FileVM) && s.vm().PID != 0 })
	s.eventually("it says so", func() bool {
		return strings.Contains(s.stderr.String(), "looking for changes every 1s alone: inotify")
	})
	for n := range uint64(2) {
		s.request("u-1", n+1)
		s.answers(n + 1)
	}
	if got := strings.Fields(readFile(t, did)); len(got) != 2 {
		t.Errorf("the guest was asked %d times", len(got))
	}
}
