package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// freezeDisk makes every write to a disk hang until thaw, in a way that no signal ends
// (state D). A process that outlives this one thaws the disk.
func freezeDisk(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `fsfreeze -f "$1" && echo frozen; read -r _; exec fsfreeze -u "$1"`, "sh", dir)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	thawed := false
	thaw = func() {
		if thawed {
			return
		}
		thawed = true
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("thaw: %v", err)
		}
	}
	t.Cleanup(thaw)
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("freeze: %q, %v", said, err)
	}
	return thaw
}

// inD reports whether a thread of QEMU waits in a way that no signal ends: whether it is in
// state D by proc(5)'s stat.
func inD(t *testing.T, v *node.VM, thread string) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/%s/stat", v.PID, thread))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " D") {
			return true
		}
	}
	return false
}

const (
	cannotKill   = "QEMU cannot be killed"
	destroysFail = `vmgrace_destroys_total{via="failed"}`
)

// Given a disk that does not answer, which holds a thread of two QEMUs in state D. Of one
// QEMU it is the main thread: libvirt fails to destroy that domain. Of the other, which has
// no pending request, it is a CPU's thread: SIGKILL leaves the main thread as a zombie, and
// libvirt 9.0 reports that domain as off after 81 s. When both have a deadline, then the
// agent reports each VM once and retries until the disk answers.
func TestAQEMUThatNothingCanKillIsReportedOnceAndRetried(t *testing.T) {
	t.Parallel()
	// Given
	disk := mountImage(t, newImage(t))
	n := node.New(t) // made after the mount, so that it sees the disk
	a := n.Agent(t, "--destroy-timeout=1s").Start(t)
	main := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=3")
	other := a.Guarded(t, node.Spec{Firmware: true, Unbootable: true}, "--grace-period=0")
	neighbour := a.Guarded(t, node.Spec{Firmware: true}, "--grace-period=20")
	other.Virsh(t, "qemu-monitor-command", "--hmp", "logfile "+filepath.Join(disk, "log"))
	other.Virsh(t, "qemu-monitor-command", "--hmp", "log unimp")
	thaw := freezeDisk(t, disk)
	other.Virsh(t, "qemu-monitor-command", "--hmp", "log int") // makes the CPU's thread write
	save := n.Command("virsh", "-c", "qemu:///system", "qemu-monitor-command", main.Domain,
		fmt.Sprintf(`{"execute":"pmemsave","arguments":{"val":0,"size":4096,"filename":%q}}`, filepath.Join(disk, "memory")))
	if err := save.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = save.Process.Kill(); _ = save.Wait() })
	stuck := []*node.VM{main, other}
	node.Eventually(t, soon, func() bool { return inD(t, main, strconv.Itoa(main.PID)) && inD(t, other, "*") }, "they do not hang")
	// When
	main.SignalShim(t)
	other.SignalShim(t)
	from := neighbour.SignalShim(t)
	// Then no other VM is affected, and the agent reports each stuck VM once.
	neighbour.WaitTerminated(t, from.Add(20*time.Second), late)
	neighbour.WaitStopped(t, "LauncherSignal", "Forced")
	node.Eventually(t, 2*soon, func() bool { return a.Metrics(t)[destroysFail] == 2 }, "it is not reported")
	// And libvirt cannot help, and the agent does not believe its report of the end.
	running := filepath.Join(n.RunDir(), other.Domain+".xml") // it exists while libvirt says that the domain runs
	node.Eventually(t, 2*time.Minute, func() bool { _, err := os.Stat(running); return os.IsNotExist(err) }, "libvirt does not call it off")
	t.Logf("libvirt calls one off %v after the signal", time.Since(from).Round(time.Second))
	if log, err := os.ReadFile(filepath.Join(n.Dir, "libvirtd.log")); !strings.Contains(string(log), "with SIGKILL: Device or resource busy") {
		t.Errorf("libvirt was not refused anything (%v): this tests nothing", err)
	}
	for _, v := range stuck {
		destroying(t, v)
		if tries := a.Said(fmt.Sprintf("signal=SIGKILL pid=%d ", v.PID)); tries < 5 || tries > 10 {
			t.Errorf("SIGKILL was sent %d times to %s", tries, v.Domain)
		}
	}
	if said := a.Said(cannotKill); said != 2 || a.Metrics(t)[destroysFail] != 2 {
		t.Errorf("%d lines about it, %s %v; want one for each VM", said, destroysFail, a.Metrics(t)[destroysFail])
	}
	// And the next agent goes on and reports each VM again.
	a.Restart(t)
	node.Eventually(t, soon, func() bool { return a.Metrics(t)[destroysFail] == 2 }, "it is not reported again")
	for _, v := range stuck {
		destroying(t, v)
	}
	thaw()
	for _, v := range stuck {
		v.WaitStopped(t, "LauncherSignal", "Forced")
	}
	node.Eventually(t, soon, func() bool { return len(a.Status(t)) == 0 }, "a record is left of a VM that stopped")
	if said := a.Said(cannotKill); said != 4 {
		t.Errorf("%d lines about it, want one for each VM and agent", said)
	}
}

// destroying checks that QEMU runs after its deadline, that status.json and the record say
// Destroying, and that the trigger stays.
func destroying(t *testing.T, v *node.VM) {
	t.Helper()
	record, ok := v.Agent.StatusOf(t, v.Guest)
	if said := v.Launcher.Status(); said.Phase != "Destroying" || !ok || record.Phase != "Destroying" || v.Gone() || !v.Launcher.Has("shutdown") {
		t.Errorf("%s: status.json %+v, record %+v, QEMU gone: %v", v.Domain, said, record, v.Gone())
	}
}
