package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// daemon says which libvirt a node has.
type daemon struct {
	// path is that of libvirtd or virtqemud, or its name.
	path string
	// root is that of the distribution which the daemon and its QEMUs are of, "/" for the
	// machine's own. Agents, shims and virsh are of the machine's own in any case.
	root string
	// crashes means that it is started again after a crash: libvirt 11.3 crashes where a QEMU is killed
	// while its guest arrives through a tunnel.
	crashes bool
}

// theDaemon is libvirtd of the machine's own, unless VMGRACE_LIBVIRT_DAEMON names another
// daemon or VMGRACE_LIBVIRT_ROOT another root. A virtqemud, or one with VMGRACE_LIBVIRT_CRASHES, is
// started again after a crash.
func theDaemon() daemon {
	d := daemon{path: os.Getenv("VMGRACE_LIBVIRT_DAEMON"), root: os.Getenv("VMGRACE_LIBVIRT_ROOT")}
	if d.path == "" {
		d.path = "libvirtd"
	}
	if d.root == "" {
		d.root = "/"
	}
	d.crashes = d.name() != "libvirtd" || os.Getenv("VMGRACE_LIBVIRT_CRASHES") != ""
	return d
}

// NewIn is New for a node whose libvirtd and QEMUs are those of the distribution below
// root, which hack/root.sh makes.
func NewIn(t T, root string) *Node {
	t.Helper()
	return newNode(t, daemon{path: "libvirtd", root: root})
}

func (d daemon) name() string { return filepath.Base(d.path) }

func (d daemon) socket() string {
	if d.name() == "libvirtd" {
		return "libvirt-sock"
	}
	return d.name() + "-sock"
}

// cache is the name of the directory for what libvirt knows of QEMU: each of the daemons
// throws away what another one has found out.
func (d daemon) cache() string {
	switch {
	case d.root != "/":
		return "libvirt-" + filepath.Base(d.root)
	case d.name() != "libvirtd":
		return "libvirt-" + d.name()
	}
	return "libvirt"
}

// runDaemon is the program that starts the daemon. In a chroot nsenter ends up outside the
// node, at the machine's own libvirt. A second libvirtd there would take over the sockets
// of the first. The node has a host name of its own, because libvirt migrates only to
// another host. The arguments after the first four are directories that a root of its own
// shares with the node. Such a root is in a mount namespace of its own, which a sleep keeps until
// all else in the node has ended: the number of one that has ended may be that of another node's next.
const runDaemon = `set -e
[ -e /run/libvirt/vmgrace-node ] || { echo "not in the node's namespace: is this a chroot?"; exit 1; }
echo "$1" >/proc/sys/kernel/hostname
daemon=$2 listen=$3 root=$4
shift 4
if [ "$root" != / ]; then
	readlink /proc/self/ns/mnt >>/run/libvirt/vmgrace-node
	sleep infinity </dev/null >/dev/null 2>&1 &
	echo $! >>/run/libvirt/vmgrace-keep
	mount --bind "$root" "$root"
	for dir; do mkdir -p "$root$dir"; mount --rbind "$dir" "$root$dir"; done
	cd "$root"
	pivot_root . mnt
	cd /
fi
exec "$daemon" $listen -f /etc/libvirt/libvirtd.conf -p /run/libvirt/libvirtd.pid`

// StartLibvirtd starts libvirtd and waits until it answers. libvirtd must not be running.
func (n *Node) StartLibvirtd(ctx context.Context) error {
	listen := ""
	if n.listens {
		listen = "--listen"
	}
	args := []string{"--uts", "--mount", "sh", "-c", runDaemon, "sh", filepath.Base(n.Dir) + ".test", n.daemon.path, listen, n.daemon.root,
		"/dev", "/proc", "/sys", "/run/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/etc/libvirt", "/var/cache/libvirt", os.TempDir(), CacheDir()}
	if n.daemon.root == "/" {
		args = append(args[:1], args[2:]...) // the node's own mount namespace
	}
	p, err := StartProcess(n.Command("unshare", args...), filepath.Join(n.Dir, "libvirtd.log"))
	if err != nil {
		return err
	}
	n.libvirtd.Store(p)
	answers := func() bool {
		_, err := n.TryVirsh(ctx, "list")
		return err == nil || !p.Running()
	}
	if !Poll(ctx, waitTimeout, answers) || !p.Running() {
		return fmt.Errorf("libvirtd does not answer: %s", p.Log())
	}
	if n.started != nil {
		n.started <- p
	}
	return nil
}

// RestartAfterCrash makes the node start its libvirtd again each time that it crashes, as systemd does,
// until the node is closed. One that is killed stays down. It is called once, before anything else.
func (n *Node) RestartAfterCrash() {
	n.started, n.stopped = make(chan *Process, 1), make(chan struct{})
	n.started <- n.Libvirtd()
	n.crashes.Go(func() {
		for {
			select {
			case <-n.stopped:
				return
			case p := <-n.started:
				if !crashed(p) {
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
				if err := n.StartLibvirtd(ctx); err != nil {
					fmt.Fprintln(os.Stderr, "node: after a crash:", err)
				}
				cancel()
			}
		}
	})
}

// crashed waits for a process's end and reports whether that was a crash.
func crashed(p *Process) bool {
	const signalled = 128
	if fd, err := unix.PidfdOpen(p.PID(), 0); err == nil { // else somebody has seen its end already
		for !ended(fd, time.Hour) { // it ends with the node at the latest
		}
		_ = unix.Close(fd)
	}
	code, _ := p.Exited(waitTimeout)
	return code == signalled+int(unix.SIGSEGV) || code == signalled+int(unix.SIGABRT)
}
