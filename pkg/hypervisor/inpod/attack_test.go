//go:build !unit

package inpod

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
)

// How a VM process may pass for another, or another for it.

// registered returns what a launcher states once its VM process is known.
func registered(t *testing.T, dir Directory) watch.View {
	t.Helper()
	var view watch.View
	kit.Eventually(t, "the launcher names its VM process", func() bool {
		var err error
		view, err = dir.Look()
		kit.Must(t, err)
		return view.PID != 0 && view.Locked && view.Holder.PID != 0
	})
	return view
}

// children of a process, as /proc shows them to us.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	kit.Must(t, err)
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		kit.Must(t, err)
		if s, err := statusOf(pid); err == nil && s.parent == parent { // else it has ended
			pids = append(pids, pid)
		}
	}
	return pids
}

// run starts a shim with a command of the test's as its VM process.
func (w *world) run(t *testing.T, name string, special *syscall.SysProcAttr, command ...string) *exec.Cmd {
	t.Helper()
	_, vm, _ := strings.Cut(name, "_")
	shim := exec.Command(binary, append([]string{
		"--namespace=ns", "--name=" + vm, "--uid=u-1", "--launcher-dir=" + filepath.Join(w.base, name), "--ask-with=exec:true", "--",
	}, command...)...)
	shim.SysProcAttr = special
	kit.Must(t, shim.Start())
	t.Cleanup(func() {
		_ = shim.Process.Kill() // PID 1 of its namespace: everything in it ends
		_ = shim.Wait()
	})
	return shim
}

func TestAProcessOfAPIDNamespaceBelowTheLaunchersIsNotItsVM(t *testing.T) {
	// Given: a VM process that runs its guest in a PID namespace of its own.
	w := given(t)
	domain, dir := w.directory(t, "")
	w.run(t, domain, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "unshare", "--pid", "--fork", "--kill-child", "sleep", "300")
	view := registered(t, dir)
	p, err := identify(view.Holder.PID, view.PID, "")
	kit.Must(t, err) // the one that the shim started, in its own namespace
	t.Cleanup(func() { kit.Must(t, p.Close()) })
	var inner int
	kit.Eventually(t, "the guest runs", func() bool {
		if below := children(t, p.PID()); len(below) == 1 {
			inner = below[0]
		}
		space, err := namespaceOf(inner)
		own, ownErr := namespaceOf(p.PID())
		return err == nil && ownErr == nil && space != own
	})
	text := strings.Fields(strings.SplitN(strings.SplitN(content("/proc/"+strconv.Itoa(inner)+"/status"), "NSpid:", 2)[1], "\n", 2)[0])
	if len(text) < 3 || text[len(text)-1] != "1" {
		t.Fatalf("NSpid of the guest: %q", text)
	}
	middle, err := strconv.Atoi(text[len(text)-2])
	kit.Must(t, err)
	// Then neither its pid there, nor that of the shim's namespace, nor the host's
	// names a VM process. 1 is the shim there.
	for pid, want := range map[int]error{middle: errNoSuchPID, 1: errNotBelow, inner: errNoSuchPID} {
		if got, err := identify(view.Holder.PID, pid, ""); !errors.Is(err, want) {
			t.Errorf("pid %d: %+v, %v; want %v", pid, got, err, want)
		}
	}
}

func TestAPIDThatWasReusedBeforeItIsOpenedIsRefused(t *testing.T) {
	// Given: a VM, and processes of others that may have got its pid meanwhile.
	w := given(t)
	domain, dir := w.directory(t, "")
	w.launch(t, domain, drivertest.Deaf)
	view := registered(t, dir)
	space, err := namespaceOf(view.Holder.PID)
	kit.Must(t, err)
	otherDomain, otherDir := w.directory(t, "")
	w.launch(t, otherDomain, drivertest.Deaf)
	others := registered(t, otherDir)
	stranger := exec.Command("sleep", "300")
	stranger.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	kit.Must(t, stranger.Start())
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait() // killed: always an error
	})
	for name, c := range map[string]struct {
		opened, says int
		want         error
	}{
		"another launcher's VM":     {others.PID, others.PID, errNotBelow},
		"another launcher's shim":   {others.Holder.PID, others.Holder.PID, errNotBelow},
		"the agent":                 {os.Getpid(), os.Getpid(), errNotBelow},
		"of another namespace":      {stranger.Process.Pid, 1, errNoSuchPID},
		"one with another pid":      {view.PID, view.PID + 1, errNoSuchPID},
		"the VM itself, of no pod":  {view.PID, view.PID, errNotInPod},
		"the VM itself, for itself": {view.PID, view.PID, nil},
	} {
		p, err := hold(c.opened)
		kit.Must(t, err)
		in := ""
		if errors.Is(c.want, errNotInPod) {
			in = pod
		}
		if err := check(p, space, c.says, in, view.Holder.PID); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		kit.Must(t, p.Close())
	}
}

func TestAVMProcessIsTheOneThatWasStarted(t *testing.T) {
	// Given: a VM process whose name looks like what /proc says of another, and
	// which has left a child behind when it ends.
	w := given(t)
	domain, dir := w.directory(t, "")
	sh, err := exec.LookPath("sh")
	kit.Must(t, err)
	name := filepath.Join(t.TempDir(), "q) Z 1\nPPid:\t1")
	kit.Must(t, os.Symlink(sh, name))
	left := filepath.Join(t.TempDir(), "left")
	w.run(t, domain, nil, name, "-c", "sleep 300 & echo $! >"+left+".new; mv "+left+".new "+left+"; exec 3>&-; while [ -e "+left+" ]; do sleep 0.05; done")
	view := registered(t, dir)
	kit.Eventually(t, "it has a child", func() bool { return content(left) != "" })
	child, err := strconv.Atoi(content(left))
	kit.Must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	if comm := content("/proc/" + strconv.Itoa(view.PID) + "/comm"); !strings.Contains(comm, "Z 1\nPPid:") {
		t.Fatalf("its name is %q", comm)
	}
	d, err := w.Get(t.Context(), domain)
	kit.Must(t, err)
	start, err := process.Start(view.PID)
	kit.Must(t, err)
	if d.Instance.PID != view.PID || d.Instance.Start != start {
		t.Errorf("%+v, want pid %d of %d", d.Instance, view.PID, start)
	}
	// When it ends, so does the VM; its child is ignored.
	kit.Must(t, os.Remove(left))
	kit.Eventually(t, "the VM is gone", func() bool {
		_, err := w.Get(t.Context(), domain)
		return errors.Is(err, hypervisor.ErrNotFound)
	})
	if err := w.Destroy(t.Context(), domain, d.Instance); err == nil {
		t.Error("what has ended can be destroyed")
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Errorf("its child: %v", err)
	}
}
