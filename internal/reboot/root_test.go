//go:build !unit

package reboot

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/internal/hold"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/kit"
)

const (
	podUID    = "8c3a1f70-5a4e-4b0c-9d3e-0f1e2d3c4b5a"
	container = "1f00000000000000000000000000000000000000000000000000000000000001"
	sidecar   = "2f00000000000000000000000000000000000000000000000000000000000002"
)

// cgroup makes a cgroup as kubelet and a runtime do, and returns its path. With cgroup v1 it is
// in one of the hierarchies.
func cgroup(t *testing.T, name string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "pids")
	}
	top := filepath.Join(root, "vmgrace-test-reboot-"+strconv.Itoa(os.Getpid()))
	path := filepath.Join(top, name)
	kit.Must(t, os.MkdirAll(path, 0o755))
	t.Cleanup(func() {
		for ; path != root; path = filepath.Dir(path) {
			if entries, err := os.ReadDir(path); err == nil && hasDirs(entries) {
				return // another cgroup of the test is in it
			}
			kit.Eventually(t, "its processes have ended", func() bool { return os.Remove(path) == nil })
		}
	})
	return path
}

func hasDirs(entries []os.DirEntry) bool {
	for _, e := range entries {
		if e.IsDir() {
			return true
		}
	}
	return false
}

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
	kit.Must(t, os.WriteFile(qemu, text, 0o755))
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
	unit := strings.ReplaceAll(podUID, "-", "_")
	for name, of := range map[string]func(id string) string{
		"cgroupfs": func(id string) string { return "kubepods/burstable/pod" + podUID + "/" + id },
		"systemd": func(id string) string {
			return "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/cri-containerd-" + id + ".scope"
		},
		"CRI-O": func(id string) string {
			return "kubepods.slice/kubepods-pod" + unit + ".slice/crio-" + id + ".scope/container"
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, marks := launch(t, cgroup(t, of(container)))
			_, besideIt := launch(t, cgroup(t, of(sidecar)))
			_, others := launch(t, cgroup(t, "kubepods/podanother/"+container))
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
