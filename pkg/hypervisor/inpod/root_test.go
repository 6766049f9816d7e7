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
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

func move(t *testing.T, pid int, cgroup string) {
	t.Helper()
	kit.Must(t, os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
}

func TestAVMIsFoundInTheCgroupOfItsPodAlone(t *testing.T) {
	const other, container = "00000000-0000-4000-8000-000000000001", "1f00000000000000"
	ofOthers := kit.PodCgroups(other, container)
	for driver, ofMine := range kit.PodCgroups(pod, container) {
		t.Run(driver, func(t *testing.T) {
			foundInItsPodAlone(t, kit.Cgroup(t, ofMine), kit.Cgroup(t, ofOthers[driver]))
		})
	}
}

func foundInItsPodAlone(t *testing.T, mine, others string) {
	t.Helper()
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
