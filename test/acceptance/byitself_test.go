package acceptance

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given a VM of libvirt's whose launcher, as in deploy/examples, sees no VM process. When it
// goes off by itself, then its launcher ends some seconds later, with 1 if it crashed.
func TestAVMThatGoesOffByItselfEndsItsLauncher(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(t *testing.T, a *node.Agent, v *node.VM)
		status int
	}{
		"the guest powers off": {func(t *testing.T, _ *node.Agent, v *node.VM) { t.Helper(); v.Virsh(t, "shutdown") }, 0},
		"virsh destroy":        {func(t *testing.T, _ *node.Agent, v *node.VM) { t.Helper(); v.Virsh(t, "destroy") }, 0},
		"QEMU crashes":         {func(t *testing.T, _ *node.Agent, v *node.VM) { t.Helper(); v.Signal(t, syscall.SIGKILL) }, 1},
		"while no agent runs": {func(t *testing.T, a *node.Agent, v *node.VM) {
			t.Helper()
			a.Kill()
			v.Signal(t, syscall.SIGKILL)
			v.WaitGone(t, soon)
			a.Start(t)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := shared.Agent(t).Start(t)
			v := blind(t, a, node.Spec{})
			c.end(t, a, v)
			v.Launcher.WaitStopped(t, 2*soon)
			v.WaitExit(t, c.status)
			if s := v.Launcher.Status(); s.Cause != "" {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Given the same. When its domain is started again at once, or was saved and comes back later,
// then its launcher stays.
func TestAVMThatComesBackKeepsItsLauncher(t *testing.T) {
	for name, comesBack := range map[string]func(*testing.T, *node.VM){
		"started again": func(t *testing.T, v *node.VM) {
			t.Helper()
			v.Virsh(t, "destroy")
			shared.Start(t, v.Spec)
		},
		"restored": func(t *testing.T, v *node.VM) {
			t.Helper()
			file := filepath.Join(t.TempDir(), "state")
			v.Virsh(t, "save", file)
			node.Eventually(t, 2*soon, func() bool { return strings.Contains(v.Shim.Log(), "was saved: waiting for its return") }, "it does not say so")
			node.Never(t, 6*time.Second, func() bool { return !v.Shim.Running() }, "its launcher has ended")
			shared.Virsh(t, "restore", file)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := blind(t, shared.Agent(t).Start(t), node.Spec{Firmware: true})
			comesBack(t, v)
			node.Eventually(t, 2*soon, func() bool { return v.Launcher.Status().Phase == "Running" }, "it is not guarded again")
			node.Never(t, 6*time.Second, func() bool { return !v.Shim.Running() }, "its launcher has ended")
			v.Virsh(t, "destroy")
			v.WaitExit(t, 0)
		})
	}
}

// blind guards a guest whose launcher cannot see its process.
func blind(t *testing.T, a *node.Agent, spec node.Spec) *node.VM {
	t.Helper()
	v := a.VM(t, shared.Boot(t, spec), "--pid=", "--pid-file="+filepath.Join(t.TempDir(), "never"))
	v.WaitGuarded(t)
	return v
}
