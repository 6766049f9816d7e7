package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

const leaderlessChild = "PROCESS_TEST_LEADERLESS"

// init makes a process whose main thread has exited while another one goes on.
func init() {
	if os.Getenv(leaderlessChild) != "" {
		go func() { select {} }()
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
}

// Like a QEMU that was killed while one of its CPUs waits for a disk.
func TestAProcessWithOneThreadLeftIsNotExiting(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), leaderlessChild+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p := opened(t, cmd.Process.Pid, started(t, cmd.Process.Pid))
	defer p.Close()
	mainExits := func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		flags, _ := number(stat, 9)
		return err == nil && flags&pfExiting != 0
	}
	kit.Eventually(t, "its main thread exits", mainExits)
	if !mainExits() || p.Exiting() || p.Gone() {
		t.Errorf("its main thread exits %t, it exits %t, it is gone %t", mainExits(), p.Exiting(), p.Gone())
	}
}

func TestAProcessIsExitingWhenAllItsThreadsAre(t *testing.T) {
	const exits, lives = 0x40410c, 0x400108
	for name, c := range map[string]struct {
		threads []int
		want    bool
	}{
		"all": {[]int{exits, exits}, true}, "the main one only": {[]int{exits, lives}, false},
		"all but the main one": {[]int{lives, exits}, false}, "none": {[]int{lives}, false}, "no thread": {nil, false},
	} {
		dir := t.TempDir()
		for i, flags := range c.threads {
			task := filepath.Join(dir, "task", fmt.Sprint(100+i))
			stat := fmt.Appendf(nil, "%d (a) b (c) Z 1 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 2 0 777 0 0\n", 100+i, flags)
			if err := os.MkdirAll(task, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(task, "stat"), stat, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := exiting(dir); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
