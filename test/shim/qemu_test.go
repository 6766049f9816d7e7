//go:build !unit

package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/node"
)

const incoming = "VMGRACE_INCOMING=m-1"

// boot starts a shim with a real QEMU, emulated, and waits until its guest is up or, with env, waited for.
func boot(t *testing.T, cpu string, env ...string) *shimProcess {
	t.Helper()
	kernel, initrd := node.GuestImage(t)
	monitor := filepath.Join(t.TempDir(), "qmp")
	serial := filepath.Join(t.TempDir(), "serial")
	s := prepare(t, t.TempDir(), "--ask-with=qmp:"+monitor, "--", "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", cpu, "-m", "128",
		"-display", "none", "-nodefaults", "-no-user-config", "-serial", "file:"+serial, "-qmp", "unix:"+monitor+",server=on,wait=off",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet ")
	s.cmd.Env = append(os.Environ(), env...)
	s.start()
	s.eventually("vm.json", func() bool { return s.there(signals.FileVM) })
	s.eventually("the monitor answers", func() bool { return s.vm().Migration.Able == signals.AbleOK })
	if len(env) == 0 {
		s.eventually("the guest is up", func() bool { return strings.Contains(readFile(t, serial), "vmgrace-guest: up") })
	}
	return s
}

// Given a CPU of one model, of which the host of the other QEMU lacks a feature: QEMU leaves that out, and
// goes on. Then the two machines differ. Otherwise a guest would be moved to where an instruction that it
// uses is missing.
func TestACPUThatLacksAFeatureIsAnother(t *testing.T) {
	whole, lacking := boot(t, "qemu64", incoming).vm().Migration.Machine, boot(t, "qemu64,-sse3", "", incoming).vm().Migration.Machine
	if whole.Features == "" || whole.Features == lacking.Features || whole.CPU != lacking.CPU {
		t.Errorf("%+v and %+v", whole, lacking)
	}
}

func TestAShimWhoseGuestCanBeMovedIsSmallAndSleeps(t *testing.T) {
	s := boot(t, "qemu64")
	s.staysFor(time.Second)
	before := switches(t, s.cmd.Process.Pid)
	s.staysFor(5 * time.Second)
	if n := switches(t, s.cmd.Process.Pid) - before; n > 2*5 {
		t.Errorf("its threads were switched %d times in 5 s", n)
	}
	wantSmall(t, s.cmd.Process.Pid)
}
