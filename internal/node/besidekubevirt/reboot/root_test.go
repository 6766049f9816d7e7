//go:build !unit

package reboot

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/kit"
)

const (
	podUID    = "8c3a1f70-5a4e-4b0c-9d3e-0f1e2d3c4b5a"
	container = "1f00000000000000000000000000000000000000000000000000000000000001"
	sidecar   = "2f00000000000000000000000000000000000000000000000000000000000002"
)

// launch starts a container in a cgroup: PID 1 of a PID namespace and a child named as QEMU is.
// SIGTERM ends only PID 1's wait, so that a test sees who got it.
func launch(t *testing.T, cgroup string) (first int, marks string) {
	t.Helper()
	dir := t.TempDir()
	qemu := filepath.Join(dir, "qemu-system-x86_64")
	sleep, err := exec.LookPath("sleep")
	kit.Must(t, err)
	text, err := os.ReadFile(sleep)
	kit.Must(t, err)
	kit.Program(t, qemu, string(text))
	marks = filepath.Join(dir, "marks")
	script := `trap "echo TERM >>` + marks + `" TERM; echo $$ >` + filepath.Join(cgroup, "cgroup.procs") + ` 2>/dev/null; ` + qemu + ` 300 & echo up >>` + marks + `; while :; do wait; sleep 0.05; done`
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	kit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	kit.Must(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	kit.Eventually(t, "it is up", func() bool { text, _ := os.ReadFile(marks); return len(text) > 0 })
	return cmd.Process.Pid, marks
}

func TestALaunchersProcessesAreFoundBelowItsPodsCgroup(t *testing.T) {
	other := kit.PodCgroups(podUID, sidecar)
	for name, of := range kit.PodCgroups(podUID, container) {
		t.Run(name, func(t *testing.T) {
			first, marks := launch(t, kit.Cgroup(t, of))
			_, besideIt := launch(t, kit.Cgroup(t, other[name]))
			_, others := launch(t, kit.Cgroup(t, "kubepods/podanother/"+container))
			launcher := hold.Launcher{Compute: container, Pod: grace.Pod{UID: podUID}}
			var is Processes
			kit.Eventually(t, "both QEMUs of the pod are seen", func() bool {
				found, err := Local{}.Find([]hold.Launcher{launcher, {Compute: container, Pod: grace.Pod{UID: "unknown"}}})
				kit.Must(t, err)
				is = found[podUID]
				return len(is.QEMUs) == 2 && len(found) == 1
			})
			if is.First.PID != first {
				t.Fatalf("PID 1 is %d, want %d", is.First.PID, first)
			}
			if age := (Local{}).Age(is.First); age < 0 || age > time.Hour {
				t.Errorf("its age is %v", age)
			}
			// Another process that has its pid gets no signal.
			kit.Must(t, Local{}.Terminate(Process{first, is.First.Start + 1}))
			kit.Must(t, Local{}.Terminate(is.First))
			kit.Eventually(t, "it got SIGTERM", func() bool { text, _ := os.ReadFile(marks); return string(text) == "up\nTERM\n" })
			for _, file := range []string{besideIt, others} {
				if text, _ := os.ReadFile(file); string(text) != "up\n" {
					t.Errorf("another got it: %q", text)
				}
			}
			launcher.Compute = ""
			if found, err := (Local{}).Find([]hold.Launcher{launcher}); err != nil || found[podUID].First != (Process{}) {
				t.Errorf("a container without an ID was found: %+v, %v", found, err)
			}
		})
	}
}
