package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// InLauncher starts a guest whose QEMU is the child of its shim, as in a launcher
// pod, and waits until it listens and the agent guards it. No libvirt knows of
// it: the Guest's Virsh is of no use. shimArgs come before the command.
func (a *Agent) InLauncher(t T, s Spec, shimArgs ...string) *VM {
	t.Helper()
	v := a.LaunchInside(t, s, shimArgs...)
	v.WaitUp(t)
	v.WaitGuarded(t)
	return v
}

// LaunchInside is InLauncher that waits only until QEMU runs.
func (a *Agent) LaunchInside(t T, s Spec, shimArgs ...string) *VM {
	t.Helper()
	s = s.Complete()
	g := &Guest{Spec: s, Domain: s.DomainName(), UID: randomUUID(), node: a.node}
	g.serial = filepath.Join(a.node.Dir, g.Domain+".serial")
	l := a.LauncherFor(t, g.Namespace, g.Name, g.UID)
	args := append([]string{"--ask-with=qmp:" + g.monitor()}, shimArgs...)
	v := &VM{Guest: g, Agent: a, Launcher: l, Shim: l.ShimAsPID1(t, append(append(args, "--"), g.qemu(t)...)...)}
	g.log = v.Shim.log
	Eventually(t, waitTimeout, func() bool { return l.pid() != 0 }, "the shim of %s tells no pid", g.Domain)
	v.hold(t)
	t.Cleanup(func() { g.cleanup(t) })
	return v
}

func (g *Guest) monitor() string { return filepath.Join(g.node.Dir, g.Domain+".qmp") }

// qemu is QEMU's command line, much as libvirt would make it.
func (g *Guest) qemu(t T) []string {
	t.Helper()
	memory := "16"
	var kernel []string
	if !g.Firmware {
		image, initrd := GuestImage(t)
		memory, kernel = "128", []string{"-kernel", image, "-initrd", initrd, "-append", kernelArgs + g.Behaviour}
	}
	return append([]string{
		"qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", memory, "-display", "none", "-nodefaults", "-no-user-config",
		"-msg", "timestamp=on", "-serial", "file:" + g.serial, "-qmp", "unix:" + g.monitor() + ",server=on,wait=off",
	}, kernel...)
}

// pid is the VM process's, as its container sees it.
func (l *Launcher) pid() int {
	var vm struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(readText(l.Path("vm.json"))), &vm); err != nil {
		return 0
	}
	return vm.PID
}

// hold takes hold of QEMU: the one child of the shim, which is PID 1 there.
func (v *VM) hold(t T) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool {
		files, err := filepath.Glob("/proc/[0-9]*/status")
		if err != nil {
			return false
		}
		for _, file := range files {
			status := readText(file)
			if strings.Contains(status, fmt.Sprintf("\nPPid:\t%d\n", v.Shim.PID())) && strings.HasPrefix(status, "Name:\tqemu") {
				v.PID, _ = strconv.Atoi(filepath.Base(filepath.Dir(file))) // digits
				return true
			}
		}
		return false
	}, "the shim of %s has no QEMU", v.Domain)
	var err error
	if v.pidfd, err = unix.PidfdOpen(v.PID, 0); err != nil {
		t.Fatalf("pidfd of QEMU %d (%s): %v", v.PID, v.Domain, err)
	}
}

// Monitor has QEMU carry out a command of QMP without arguments.
func (g *Guest) Monitor(t T, command string) {
	t.Helper()
	conn, err := net.DialTimeout("unix", g.monitor(), waitTimeout)
	if err != nil {
		t.Fatalf("monitor of %s: %v", g.Domain, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(waitTimeout))
	for _, c := range []string{"qmp_capabilities", command} {
		fmt.Fprintf(conn, "{\"execute\": %q, \"id\": %q}\n", c, c)
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if strings.Contains(lines.Text(), `"id": "`+command+`"`) {
			return
		}
	}
	t.Fatalf("the monitor of %s does not answer", g.Domain)
}
