package acceptance

import (
	"path/filepath"
	"syscall"
	"testing"

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

// blind guards a guest whose launcher cannot see its process.
func blind(t *testing.T, a *node.Agent, spec node.Spec) *node.VM {
	t.Helper()
	v := a.VM(t, shared.Boot(t, spec), "--pid=", "--pid-file="+filepath.Join(t.TempDir(), "never"))
	v.WaitGuarded(t)
	return v
}
