//go:build !unit

package inpod

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

// cgroup makes a cgroup, as kubelet does, and returns its path. With cgroup v1 it is in
// one of the hierarchies.
func cgroup(t *testing.T, name string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "pids")
	}
	parent := filepath.Join(root, "vmgrace-test-kubepods-"+strconv.Itoa(os.Getpid()))
	path := filepath.Join(parent, name)
	kit.Must(t, os.MkdirAll(path, 0o755))
	t.Cleanup(func() {
		kit.Eventually(t, "its processes have ended", func() bool { return os.Remove(path) == nil })
		_ = os.Remove(parent) // unless another cgroup of the test is in it
	})
	return path
}

func move(t *testing.T, pid int, cgroup string) {
	t.Helper()
	kit.Must(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
}

func TestAVMIsFoundInTheCgroupOfItsPodAlone(t *testing.T) {
	const other = "00000000-0000-4000-8000-000000000001"
	mine, others := cgroup(t, "pod"+pod), cgroup(t, "pod"+other)
	w := given(t)
	domain, dir := w.directory(t, pod)
	w.launch(t, domain, drivertest.Deaf)
	view, err := dir.Look()
	kit.Must(t, err)
	shim, vm := view.Holder.PID, view.PID
	for name, c := range map[string]struct {
		shim, vm string
		want     error
	}{
		"both in the pod":     {mine, mine, nil},
		"both in another pod": {others, others, errNotInPod},
		"the VM in another":   {mine, others, errNotInPod},
		"the shim in another": {others, mine, errNotInPod},
	} {
		move(t, shim, c.shim)
		move(t, vm, c.vm)
		p, err := identify(shim, vm, pod)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if p != nil {
			kit.Must(t, p.Close())
		}
	}
	// Once found, it stays the VM wherever it is moved.
	move(t, shim, mine)
	move(t, vm, mine)
	kit.Eventually(t, "it is found", func() bool {
		_, err := dir.Look()
		kit.Must(t, err)
		_, err = w.Get(t.Context(), domain)
		return err == nil
	})
	move(t, vm, others)
	if d, err := w.Get(t.Context(), domain); err != nil || d.Instance.PID != vm {
		t.Errorf("got %+v, %v", d, err)
	}
}

func TestAPIDIsThatOfTheShimsNamespace(t *testing.T) {
	// Given: a shim that is PID 1 of a PID namespace, where its VM has another pid.
	w := given(t)
	domain, _ := w.directory(t, "")
	w.launchIn(t, domain, drivertest.Deaf, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	w.look(t, domain)
	d, err := w.Get(t.Context(), domain)
	kit.Must(t, err)
	status := content("/proc/" + strconv.Itoa(d.Instance.PID) + "/status")
	v := w.vm(domain)
	view, err := v.Look()
	kit.Must(t, err)
	if !strings.Contains(status, "\nNSpid:\t"+strconv.Itoa(d.Instance.PID)+"\t"+strconv.Itoa(view.PID)+"\n") {
		t.Errorf("pid %d is not %d in the shim's namespace:\n%s", d.Instance.PID, view.PID, status)
	}
	// A pid of the host means nothing there.
	if _, err := identify(view.Holder.PID, os.Getpid(), ""); !errors.Is(err, errNoSuchPID) {
		t.Errorf("the agent's own pid: %v", err)
	}
	if _, err := w.Get(t.Context(), "ns_other"); !errors.Is(err, hypervisor.ErrNotFound) {
		t.Error(err)
	}
}
