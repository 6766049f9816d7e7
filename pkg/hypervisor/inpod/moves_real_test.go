//go:build !unit

package inpod

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/drivertest"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// qemu starts the real shim with a real QEMU, emulated, and returns QEMU's monitor and the guest's
// serial port.
func (w *world) qemu(t *testing.T, name string, env ...string) (monitor, serial string) {
	t.Helper()
	kernel, initrd := node.GuestImage(t)
	monitor, serial = filepath.Join(t.TempDir(), "qmp"), filepath.Join(t.TempDir(), "serial")
	_, vm, _ := grace.SplitDomainName(name)
	shim := exec.Command(binary, "--namespace=ns", "--name="+vm, "--uid=u-1", "--launcher-dir="+filepath.Join(w.base, name),
		"--ask-with=qmp:"+monitor, "--", "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", "128", "-display", "none", "-nodefaults",
		"-no-user-config", "-serial", "file:"+serial, "-qmp", "unix:"+monitor+",server=on,wait=off",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet no_timer_check")
	shim.Env = append(os.Environ(), env...)
	kit.Must(t, shim.Start())
	t.Cleanup(func() {
		if i, runs := w.vm(name).known(); runs {
			_ = syscall.Kill(i.PID, syscall.SIGKILL) // it ends the shim
		}
		_ = shim.Wait() // of a killed command: an error
	})
	w.waitKnown(t, name)
	return monitor, serial
}

func TestContractOfMigrationsOfRealGuests(t *testing.T) {
	drivertest.RunMoves(t, drivertest.MoveSuite{Timeout: 4 * testTimeout, New: func(t *testing.T) *drivertest.MoveHarness {
		t.Helper()
		a, source := host(t, false)
		b, target := host(t, true)
		monitors := map[string]string{}
		return &drivertest.MoveHarness{
			Sender: source, Source: source, Target: target,
			Start: func(t *testing.T) string {
				t.Helper()
				name, _ := a.directory(t, "")
				b.directory(t, "")
				monitor, serial := a.qemu(t, name)
				monitors[name] = monitor
				b.qemu(t, name, "VMGRACE_INCOMING=m")
				kit.Eventually(t, "the guest is up", func() bool { return strings.Contains(content(serial), "vmgrace-guest: up") })
				return name
			},
			Connect: func(t *testing.T, name string) string { t.Helper(); relay(t, source, target, name); return "" },
			Pause:   func(t *testing.T, name string) { t.Helper(); node.Monitor(t, monitors[name], "stop") },
		}
	}})
}
