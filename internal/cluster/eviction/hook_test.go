package eviction

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

// shells are what a launcher image may have as /bin/sh. The last one has a sleep of its own.
var shells = []string{"sh", "dash", "bash --posix", "busybox sh"}

// shell is a test in one shell.
type shell struct {
	*testing.T

	words []string
}

// inEachShell runs a test in those of the shells that the machine has.
func inEachShell(t *testing.T, shells []string, test func(shell)) {
	t.Helper()
	for _, name := range shells {
		words := strings.Fields(name)
		if path, err := exec.LookPath(words[0]); err == nil {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(shell{t, append([]string{path}, words[1:]...)}) })
		}
	}
}

// hook returns the hook of a launcher, for a directory and at most 2 s.
func (s shell) hook(dir string) *exec.Cmd {
	s.Helper()
	command := hook("2").Exec.Command
	command[len(command)-1] = dir
	cmd := exec.CommandContext(s.Context(), s.words[0], append(s.words[1:len(s.words):len(s.words)], command[1:]...)...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	s.Cleanup(func() {
		if said.Len() > 0 {
			s.Errorf("the hook says %q", &said)
		}
	})
	return cmd
}

// open returns a directory of the test that every user reads.
func (s shell) open() string {
	s.Helper()
	dir := s.TempDir()
	s.must(errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)))
	return dir
}

func (s shell) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// noting returns a directory of programs for a hook: mv, and a sleep that only notes how long it
// is to sleep, and then does more.
func (s shell) noting(more string) (bin string) {
	s.Helper()
	bin = s.open()
	mv, err := exec.LookPath("mv")
	s.must(err)
	s.must(os.Symlink(mv, filepath.Join(bin, "mv")))
	kit.Program(s, filepath.Join(bin, "sleep"), "#!/bin/sh\n"+more+"\necho \"$1\" >> "+bin+"/slept\n")
	return bin
}

// naps runs a hook to its end and returns how often it slept for how many seconds.
func (s shell) naps(cmd *exec.Cmd, bin string) map[string]int {
	s.Helper()
	cmd.Env = []string{"PATH=" + bin}
	if err := cmd.Run(); err != nil {
		s.Errorf("kubelet would report a failed hook: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(bin, "slept"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Error(err)
	}
	all := map[string]int{}
	for _, seconds := range strings.Fields(string(text)) {
		all[seconds]++
	}
	return all
}

// with makes files.
func (s shell) with(dir string, files ...string) string {
	s.Helper()
	for _, name := range files {
		s.must(os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	return dir
}

func there(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// Given no agent, then the hook has made the trigger, and gives an agent 2 s before the launcher
// is signalled. It leaves the answer, so that an agent that comes later holds nothing.
func TestWithoutAnAgentTheHookGoesOn(t *testing.T) {
	inEachShell(t, shells, func(s shell) {
		dir := s.TempDir()
		began := time.Now()
		s.must(s.hook(dir).Run())
		if took := time.Since(began); took < 2*time.Second {
			s.Errorf("it took %v", took)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 || left[0].Name() != "answered" || left[1].Name() != "shutdown" {
			s.Errorf("it leaves %v, %v", left, err)
		}
	})
	inEachShell(t, shells[:3], func(s shell) {
		if naps := s.naps(s.hook(s.TempDir()), s.noting("")); !maps.Equal(naps, map[string]int{"0.1": 20}) {
			s.Errorf("it sleeps %v", naps)
		}
		if naps := s.naps(s.hook(s.TempDir()), s.noting("case $1 in *.*) exit 1 ;; esac")); !maps.Equal(naps, map[string]int{"1": 2}) {
			s.Errorf("with a sleep that takes whole seconds alone it sleeps %v", naps)
		}
	})
}

// Given an agent that has died between the two files of a hold. Then the hook waits for the next
// agent, which has the record.
func TestAHoldWhoseAnswerIsMissingIsKept(t *testing.T) {
	inEachShell(t, shells[:3], func(s shell) {
		if naps := s.naps(s.hook(s.with(s.TempDir(), "held")), s.noting("")); !maps.Equal(naps, map[string]int{"0.1": 20, "0.5": 4}) {
			s.Errorf("it sleeps %v", naps)
		}
	})
}

// Given an agent that does not hold, and launchers that no agent can be told about, then
// nothing is waited for: a deletion takes as long as without the hook.
func TestTheHookWaitsForNobodyWhoHasAnsweredOrCannot(t *testing.T) {
	inEachShell(t, shells[:3], func(s shell) {
		answered := s.with(s.TempDir(), "answered")
		if naps := s.naps(s.hook(answered), s.noting("")); len(naps) > 0 || !there(answered, "shutdown") {
			s.Errorf("answered: it sleeps %v", naps)
		}
		if naps := s.naps(s.hook(filepath.Join(s.TempDir(), "missing")), s.noting("")); len(naps) > 0 {
			s.Errorf("no directory: it sleeps %v", naps)
		}
		closed := s.open()
		s.must(os.Chmod(closed, 0o555))
		readOnly := s.hook(closed)
		if unix.Access(closed, unix.W_OK) == nil { // root, whom no mode keeps out
			readOnly.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		if naps := s.naps(readOnly, s.noting("")); len(naps) > 0 || there(closed, "shutdown") {
			s.Errorf("read-only directory: it sleeps %v", naps)
		}
		bin := s.noting("")
		s.must(os.Remove(filepath.Join(bin, "mv")))
		if naps := s.naps(s.hook(s.TempDir()), bin); len(naps) > 0 {
			s.Errorf("no mv: it sleeps %v", naps)
		}
	})
}

// Given two containers of a pod that make the trigger at the same time, so that one of them cannot
// move its file any more. Then both wait.
func TestTwoContainersMakeTheTriggerAtOnce(t *testing.T) {
	inEachShell(t, shells[:3], func(s shell) {
		dir, bin := s.TempDir(), s.noting("")
		s.must(os.Remove(filepath.Join(bin, "mv")))
		kit.Program(s, filepath.Join(bin, "mv"), "#!/bin/sh\n/bin/mv -f .shutdown shutdown\nexec /bin/mv \"$@\"\n")
		if naps := s.naps(s.hook(dir), bin); naps["0.1"] != 20 {
			s.Errorf("the second sleeps %v", naps)
		}
	})
}

// Given a shutdown that is held. When the agent lets go, then the hook ends.
func TestTheHookWaitsWhileTheShutdownIsHeld(t *testing.T) {
	inEachShell(t, shells[:3], func(s shell) {
		dir := s.with(s.TempDir(), "held", "answered")
		letsGo := "[ -e " + dir + "/waited ] && PATH=/bin:/usr/bin rm " + dir + "/held"
		if naps := s.naps(s.hook(dir), s.noting(letsGo)); !maps.Equal(naps, map[string]int{"0.5": 2}) {
			s.Errorf("it sleeps %v", naps)
		}
	})
}

// Given a hold that nobody ends. Then the hook waits for the allowance, and where kubelet runs
// it again only for the rest. What a tenant writes changes no more than that.
func TestTheHookWaitsNoLongerThanTheAllowance(t *testing.T) {
	inEachShell(t, shells[:3], func(s shell) {
		for waited, want := range map[string]int{"": 4, "15": 1, "20": 0, "21": 0, "08": 4, "1x": 4, "-5": 4, "99999999999999999999": 4} {
			dir := s.with(s.TempDir(), "held", "answered", "shutdown")
			s.must(os.WriteFile(filepath.Join(dir, "waited"), []byte(waited+"\n"), 0o600))
			if naps := s.naps(s.hook(dir), s.noting("")); naps["0.5"] != want || len(naps) > 1 {
				s.Errorf("after %q it sleeps %v, want %d of 0.5", waited, naps, want)
			}
			if naps := s.naps(s.hook(dir), s.noting("")); want > 0 && len(naps) > 0 {
				s.Errorf("again: it sleeps %v", naps)
			}
		}
	})
}
