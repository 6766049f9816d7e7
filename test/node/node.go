package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// waitTimeout bounds every wait on a busy machine for what has no promised time.
const waitTimeout = 60 * time.Second

// Node is a private mount namespace with a libvirtd in it. libvirt's own directories are
// bind mounts of directories below Dir, so processes outside can read them.
type Node struct {
	// Dir is this node's directory. Its path is short, because unix sockets are below it.
	Dir string

	late     *Lateness
	signals  *Signals
	unlisted error    // why signals does not work, nil if it does
	keeper   *Process // it keeps the namespace alive
	hold     *os.File // when it is closed, the keeper kills everything in the namespace
	libvirtd atomic.Pointer[Process]
	listens  bool // whether libvirtd listens for other nodes

	// Those of RestartAfterCrash.
	crashes sync.WaitGroup
	started chan *Process
	stopped chan struct{}
	daemon  daemon
}

// keeper is the keeper's program. It ends when its standard input ends, which also happens
// when the process that started it dies. It kills every process in the node's mount
// namespace or in one of its libvirtds' (see daemon), and every process whose environment
// has VMGRACE_NODE, such as a shim in a namespace of its own. It also removes the kernel's
// list of signals, where there is one.
const keeper = `set -e
mount --make-rprivate /
while [ $# -gt 0 ]; do mkdir -p "$1" "$2"; mount --bind "$1" "$2"; shift 2; done
mkdir "$VMGRACE_NODE/trace" && mount -t tracefs none "$VMGRACE_NODE/trace" || :
readlink /proc/self/ns/mnt >/run/libvirt/vmgrace-node
read -r _ || :
keep=$(tr '\n' ' ' 2>/dev/null </run/libvirt/vmgrace-keep || :) # they end last, see daemon
for pass in 1 2; do
	for p in /proc/[0-9]*; do
		case " $$ $keep " in *" ${p#/proc/} "*) continue ;; esac
		if grep -qxF "$(readlink "$p/ns/mnt")" /run/libvirt/vmgrace-node || grep -qsz "^VMGRACE_NODE=$VMGRACE_NODE\$" "$p/environ"; then
			kill -9 "${p#/proc/}" || :
		fi
	done 2>/dev/null
done
for p in $keep; do kill -9 "$p" || :; done
rmdir "$VMGRACE_NODE/trace/instances/${VMGRACE_NODE##*/}" 2>/dev/null || :
`

const libvirtdConf = `auth_unix_rw = "none"
auth_unix_ro = "none"
`

// qemuConf makes QEMU run as root without a mount namespace of its own, because the keeper
// finds it by the node's namespace. With stdio_handler "file" QEMU writes its log itself,
// without virtlogd.
const qemuConf = `user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
`

// New starts a node and closes it when the test ends.
func New(t T) *Node {
	t.Helper()
	return newNode(t, theDaemon())
}

func newNode(t T, d daemon) *Node {
	t.Helper()
	n, err := start(t.Context(), d)
	if err != nil {
		t.Fatalf("node: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("libvirtd said last:\n%s", worthReading(readText(filepath.Join(n.Dir, "libvirtd.log"))))
		}
		n.Close()
	})
	return n
}

// Main runs the tests with a node that they share and returns the exit status. A TestMain
// calls it.
func Main(run func(*Node) int) int {
	n, err := Start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		return 1
	}
	defer n.Close()
	return run(n)
}

// Start makes a node and starts its libvirtd. The caller must call Close.
func Start(ctx context.Context) (*Node, error) { return start(ctx, theDaemon()) }

func start(ctx context.Context, d daemon) (*Node, error) {
	for _, bin := range []string{"libvirtd", "virsh", "qemu-system-x86_64", "nsenter", "unshare"} {
		if _, err := exec.LookPath(bin); err != nil {
			return nil, fmt.Errorf("%s is not installed: run make deps", bin)
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a node needs root: run make test or make demo, which use sudo")
	}
	dir, err := os.MkdirTemp("", "vmgrace-node-")
	if err != nil {
		return nil, fmt.Errorf("node directory: %w", err)
	}
	n := &Node{Dir: dir, late: StartLateness(), daemon: d}
	if err := n.start(ctx); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) start(ctx context.Context) error {
	cmd := exec.Command("unshare", "--mount", "sh", "-c", keeper, "sh",
		filepath.Join(n.Dir, "run"), "/run/libvirt",
		filepath.Join(n.Dir, "lib"), "/var/lib/libvirt",
		filepath.Join(n.Dir, "log"), "/var/log/libvirt",
		filepath.Join(n.Dir, "etc"), "/etc/libvirt",
		// All nodes share this cache: libvirt takes 4 s to find out what QEMU can do, and
		// now does so only once.
		filepath.Join(CacheDir(), n.daemon.cache()), "/var/cache/libvirt")
	conf := filepath.Join(n.Dir, "etc")
	err := errors.Join(os.Mkdir(conf, 0o755),
		os.WriteFile(filepath.Join(conf, "libvirtd.conf"), []byte(libvirtdConf+"host_uuid = \""+randomUUID()+"\"\n"), 0o600),
		os.WriteFile(filepath.Join(conf, "qemu.conf"), []byte(qemuConf), 0o600))
	if err != nil {
		return fmt.Errorf("libvirt configuration: %w", err)
	}
	in, hold, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	defer in.Close()
	n.hold = hold
	cmd.Env = append(environ(), n.marker())
	cmd.Stdin = in
	if n.keeper, err = StartProcess(cmd, filepath.Join(n.Dir, "keeper.log")); err != nil {
		return err
	}
	ready := func() bool {
		_, err := os.Stat(filepath.Join(n.Dir, "run", "vmgrace-node"))
		return err == nil || !n.keeper.Running()
	}
	if !Poll(ctx, waitTimeout, ready) || !n.keeper.Running() {
		return fmt.Errorf("mount namespace: %s", n.keeper.Log())
	}
	n.signals = &Signals{filepath.Join("/proc", strconv.Itoa(n.keeper.PID()), "root", n.Dir, "trace/instances", filepath.Base(n.Dir))}
	n.unlisted = n.signals.begin()
	if err := n.StartLibvirtd(ctx); err != nil {
		return err
	}
	if n.daemon.crashes {
		n.RestartAfterCrash()
	}
	return nil
}

func (n *Node) marker() string { return "VMGRACE_NODE=" + n.Dir }

// Close kills everything that runs in the node and removes its directory.
func (n *Node) Close() {
	if n.hold != nil {
		_ = n.hold.Close()
	}
	if n.keeper != nil {
		n.keeper.Exited(waitTimeout)
	}
	if n.stopped != nil {
		close(n.stopped)
		n.crashes.Wait()
		n.stopped = nil
	}
	if p := n.Libvirtd(); p != nil {
		p.Exited(waitTimeout) // the keeper has killed it, this reaps it
	}
	_ = os.RemoveAll(n.Dir)
	n.late.Close()
}

// Late returns the largest lateness of a plain thread on this machine between two times.
func (n *Node) Late(from, to time.Time) time.Duration { return n.late.Worst(from, to) }

// Command prepares a command that runs inside the node. nsenter replaces itself with the
// program by exec, so the process id is that of the program.
func (n *Node) Command(name string, args ...string) *exec.Cmd {
	ns := "--mount=/proc/" + strconv.Itoa(n.keeper.PID()) + "/ns/mnt"
	cmd := exec.Command("nsenter", append([]string{ns, "--", name}, args...)...)
	cmd.Env = append(environ(), n.marker())
	return cmd
}

// environ returns the test's environment without LD_PRELOAD: the address sanitizer, which a test may
// run with, is for the test's own code. A libvirtd with it hangs now and then as it starts a QEMU.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
}

// Socket returns the path outside the node of its libvirtd's socket.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "run", n.daemon.socket()) }

// URI returns the URI of the node's libvirtd for clients outside the node.
func (n *Node) URI() string { return "qemu+unix:///system?socket=" + n.Socket() }

// RunDir returns the path outside the node of what is /run/libvirt/qemu inside it.
func (n *Node) RunDir() string { return filepath.Join(n.Dir, "run", "qemu") }

// Libvirtd returns the libvirtd process, for signals that kill, stop or continue it.
func (n *Node) Libvirtd() *Process { return n.libvirtd.Load() }

// RestartLibvirtd kills libvirtd with SIGKILL and starts it again.
func (n *Node) RestartLibvirtd(t T) {
	t.Helper()
	n.Libvirtd().Kill()
	if err := n.StartLibvirtd(t.Context()); err != nil {
		t.Fatalf("restart libvirtd: %v", err)
	}
}

// Virsh runs virsh in the node and returns its output.
func (n *Node) Virsh(t T, args ...string) string {
	t.Helper()
	out, err := n.TryVirsh(t.Context(), args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// TryVirsh is Virsh for calls that may fail. ctx and one minute bound it.
func (n *Node) TryVirsh(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	inside := n.Command("virsh", append([]string{"-q", "-c", "qemu:///system"}, args...)...)
	cmd := exec.CommandContext(ctx, inside.Path, inside.Args[1:]...)
	cmd.Env = inside.Env
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(out.String()), nil
}
