package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// WithoutLibvirt makes the agent start where it finds neither libvirt's client library nor
// libvirt's sockets. Its own mount namespace hides them.
func (a *Agent) WithoutLibvirt(t T) *Agent {
	t.Helper()
	const hide = `#!/bin/sh
[ -n "$HIDDEN" ] || HIDDEN=1 exec unshare -m "$0" "$@"
for l in /usr/lib/*/libvirt*.so.0*; do mount --bind /dev/null "$l" || exit; done
mount -t tmpfs none /run/libvirt || exit
`
	script := filepath.Join(filepath.Dir(a.StateDir), "agent")
	if err := os.WriteFile(script, []byte(hide+"exec "+a.Path+` "$@"`+"\n"), 0o700); err != nil {
		t.Fatalf("an agent without libvirt: %v", err)
	}
	a.Path = script
	return a
}

// InLauncher starts a guest whose QEMU is a child of its shim, as in a launcher pod. It
// waits until the guest is up and the agent guards it. No libvirt knows the domain, so the
// Guest's Virsh does not work. shimArgs come before the command.
func (a *Agent) InLauncher(t T, s Spec, shimArgs ...string) *VM {
	t.Helper()
	v := a.LaunchInside(t, s, shimArgs...)
	v.WaitUp(t)
	v.WaitGuarded(t)
	return v
}

// LaunchInside is InLauncher, but it waits only until QEMU runs.
func (a *Agent) LaunchInside(t T, s Spec, shimArgs ...string) *VM {
	t.Helper()
	s = s.Complete()
	return a.launchInside(t, s, a.LauncherFor(t, s.Namespace, s.Name, randomUUID()), []string{"unshare", "--mount-proc"}, shimArgs)
}

// LaunchInPod is LaunchInside in the launcher directory of a pod that the API server has,
// and in a cgroup like the one that kubelet makes for that pod.
func (a *Agent) LaunchInPod(t T, s Spec, l *Launcher, pod string, shimArgs ...string) *VM {
	t.Helper()
	return a.launchInside(t, s.Complete(), l, append([]string{"sh"}, InPod(t, pod, "unshare", "--mount-proc")...), shimArgs)
}

// InPod returns the arguments with which sh runs a command in the cgroup of a pod.
func InPod(t T, pod string, command ...string) []string {
	t.Helper()
	const join = `echo 0 >"$0" && exec "$@"`
	return append([]string{"-c", join, filepath.Join(podCgroup(t, pod), "cgroup.procs")}, command...)
}

func (a *Agent) launchInside(t T, s Spec, l *Launcher, wrapper, shimArgs []string) *VM {
	t.Helper()
	g := &Guest{Spec: s, Domain: s.DomainName(), UID: l.UID, node: a.node}
	if g.serial = s.Serial; g.serial == "" {
		g.serial = filepath.Join(a.node.Dir, g.Domain+".serial")
		_ = os.Remove(g.serial) // of an earlier instance
	}
	args := append([]string{"--ask-with=qmp:" + g.MonitorSocket()}, shimArgs...)
	if s.GuestAgent {
		args = append(args, "--ask-with=qga:"+g.agentSocket())
	}
	v := &VM{Guest: g, Agent: a, Launcher: l, Shim: l.shim(t, wrapper, append(append(args, "--"), g.qemu(t)...))}
	g.log = v.Shim.log
	v.inside(t)
	return v
}

// inside finds the VM's QEMU as soon as its launcher tells the pid.
func (v *VM) inside(t T) {
	t.Helper()
	Eventually(t, waitTimeout, func() bool { return v.Launcher.pid() != 0 }, "the shim of %s tells no pid", v.Domain)
	v.hold(t)
	t.Cleanup(func() { v.cleanup(t) })
}

// podCgroup makes a pod's cgroup as kubelet does with its cgroup driver cgroupfs. Under
// cgroup v1 it makes it in one hierarchy, that of pids.
func podCgroup(t T, pod string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "pids")
	}
	path := filepath.Join(root, "vmgrace-test-kubepods", "pod"+pod)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatalf("cgroup of a pod: %v", err)
	}
	t.Cleanup(func() {
		Eventually(t, waitTimeout, func() bool { return os.Remove(path) == nil }, "the processes of pod %s have ended", pod)
		_ = os.Remove(filepath.Dir(path)) // it stays while another pod is in it
	})
	return path
}

// ownLibvirt is the command of a launcher that has a libvirt daemon of its own, which
// starts the domain. InOwnLibvirt mounts over the node's libvirt directories first.
const ownLibvirt = `"$2" -f /etc/libvirt/libvirtd.conf -p /run/libvirt/daemon.pid &
until virsh -q -c "$3" list >/dev/null 2>&1; do kill -0 $! || exit 1; sleep 0.1; done
virsh -q -c "$3" create "$1" && wait
`

// Virtqemud returns the path of the daemon that hack/virtqemud.sh has built. Debian has no
// package of it.
func Virtqemud(t T) string {
	t.Helper()
	path := filepath.Join(CacheDir(), "virtqemud")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make virtqemud builds it", err)
	}
	return path
}

// InOwnLibvirt is InLauncher for a launcher whose command is a libvirt daemon of its own
// (libvirtd or virtqemud), as in KubeVirt's launchers. The daemon starts QEMU, and the shim
// asks by virsh. The node's libvirt does not know the domain.
func (a *Agent) InOwnLibvirt(t T, daemon string, s Spec, shimArgs ...string) *VM {
	t.Helper()
	s = s.Complete()
	l := a.LauncherFor(t, s.Namespace, s.Name, randomUUID())
	g := &Guest{Spec: s, Domain: s.DomainName(), UID: l.UID, node: a.node}
	g.serial, g.log = filepath.Join(a.node.Dir, g.Domain+".serial"), filepath.Join(a.node.Dir, "log", "qemu", g.Domain+".log")
	file, uri := g.define(t), "qemu:///system"
	if filepath.Base(daemon) == "virtqemud" {
		uri += "?socket=/run/libvirt/virtqemud-sock" // Debian's client looks for libvirtd's socket
	}
	const empty = `mount -t tmpfs none /run/libvirt && mount -t tmpfs none /var/lib/libvirt && exec "$@"`
	args := append([]string{
		"--ask-with=exec:virsh -q -c " + uri + " shutdown " + g.Domain, "--pid-file=/run/libvirt/qemu/" + g.Domain + ".pid",
	}, shimArgs...)
	v := &VM{Guest: g, Agent: a, Launcher: l, Shim: l.shim(t, []string{"unshare", "--mount-proc", "sh", "-c", empty, "sh"},
		append(args, "--", "sh", "-c", ownLibvirt, "sh", file, daemon, uri))}
	v.inside(t)
	v.WaitUp(t)
	v.WaitGuarded(t)
	return v
}

// MonitorSocket is the path of QEMU's monitor for the shim, where QEMU is in its launcher.
func (g *Guest) MonitorSocket() string { return filepath.Join(g.node.Dir, g.Domain+".qmp") }

// OwnMonitorSocket is the path of a second monitor, which is the test's own: QEMU serves one
// client on each.
func (g *Guest) OwnMonitorSocket() string { return g.MonitorSocket() + "2" }

func (g *Guest) agentSocket() string { return g.MonitorSocket() + "-agent" }

// qemu returns a command line of QEMU, much like the one that libvirt would make.
func (g *Guest) qemu(t T) []string {
	t.Helper()
	memory := "128"
	var boot []string
	kernel, initrd := g.image(t)
	if kernel != "" {
		boot = []string{"-kernel", kernel}
	}
	if g.Firmware {
		memory = "16"
	} else {
		boot = append(boot, "-initrd", initrd, "-append", KernelArgs+g.Behaviour)
	}
	if g.NoShutdown {
		boot = append(boot, "-no-shutdown")
	}
	if g.Disk != "" {
		boot = append(boot, "-drive", "if=virtio,format=raw,cache=none,file="+g.Disk)
	}
	if g.GuestAgent {
		boot = append(boot, "-chardev", "socket,id=qga,server=on,wait=off,path="+g.agentSocket(),
			"-device", "virtio-serial", "-device", "virtserialport,chardev=qga,name=org.qemu.guest_agent.0")
	}
	return append([]string{
		"qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", memory, "-display", "none", "-nodefaults", "-no-user-config",
		"-msg", "timestamp=on", "-chardev", "file,id=console,append=on,path=" + g.serial, "-serial", "chardev:console", "-qmp", "unix:" + g.MonitorSocket() + ",server=on,wait=off",
		"-qmp", "unix:" + g.OwnMonitorSocket() + ",server=on,wait=off",
	}, boot...)
}

// pid returns the pid of the VM process as its container sees it, 0 while it is not known.
func (l *Launcher) pid() int {
	var vm struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(readText(l.Path("vm.json"))), &vm); err != nil {
		return 0
	}
	return vm.PID
}

// hold finds the QEMU process: the only child of the shim, which is PID 1 there.
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
				v.PID, _ = strconv.Atoi(filepath.Base(filepath.Dir(file))) // only digits
				return true
			}
		}
		return false
	}, "the shim of %s has no QEMU", v.Domain)
	var err error
	if v.pidfd, err = unix.PidfdOpen(v.PID, 0); err != nil {
		t.Fatalf("pidfd of QEMU %d (%s): %v", v.PID, v.Domain, err)
	}
	v.since = monotonic(t)
}

// Monitor makes QEMU carry out a QMP command without arguments.
func (g *Guest) Monitor(t T, command string) {
	t.Helper()
	Monitor(t, g.MonitorSocket(), command)
}

// Monitor makes the QEMU behind a socket carry out a QMP command without arguments.
func Monitor(t T, socket, command string) {
	t.Helper()
	conn, err := net.DialTimeout("unix", socket, waitTimeout)
	if err != nil {
		t.Fatalf("monitor %s: %v", socket, err)
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
	t.Fatalf("the monitor %s does not answer", socket)
}

// HoldMonitor connects to QEMU's monitor as another client, until the caller calls the
// function that it returns.
func (g *Guest) HoldMonitor(t T) (release func()) {
	t.Helper()
	conn, err := net.DialTimeout("unix", g.MonitorSocket(), waitTimeout)
	if err != nil {
		t.Fatalf("monitor of %s: %v", g.Domain, err)
	}
	_ = conn.SetDeadline(time.Now().Add(waitTimeout))
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil { // after the greeting QEMU serves this client
		t.Fatalf("monitor of %s: %v", g.Domain, err)
	}
	return func() { _ = conn.Close() }
}
