package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Node is a machine of the cluster. Its methods may be called concurrently, except for the
// restarts of one node.
type Node struct {
	// Name is the node's name in Kubernetes.
	Name string

	machine *machine // nil for a node of a foreign cluster
	enter   []string // for a foreign cluster, the command that runs a script there
}

// Run runs a shell script as root on the node and returns what it prints to standard
// output.
func (n *Node) Run(t T, script string) string {
	t.Helper()
	out, err := n.TryRun(t.Context(), nil, script)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// TryRun is Run for scripts that may fail. stdin may be nil.
func (n *Node) TryRun(ctx context.Context, stdin io.Reader, script string) (string, error) {
	command := n.command(script)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Stdin = stdin
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", n.Name, script, err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

func (n *Node) command(script string) []string {
	if n.machine != nil {
		return n.machine.command(script)
	}
	command := make([]string, 0, len(n.enter)+1)
	for _, arg := range n.enter {
		command = append(command, strings.ReplaceAll(arg, "{node}", n.Name))
	}
	return append(command, script)
}

// Virsh runs virsh against the node's libvirt.
func (n *Node) Virsh(t T, args ...string) string {
	t.Helper()
	return n.Run(t, virsh(args...))
}

func virsh(args ...string) string {
	return "virsh -q -c qemu:///system " + quote(args...)
}

// quote quotes words for a shell script.
func quote(args ...string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return strings.Join(words, " ")
}

// RestartKubelet stops kubelet with SIGTERM and starts it again.
func (n *Node) RestartKubelet(ctx context.Context) error {
	if n.machine == nil {
		return n.systemctl(ctx, "restart kubelet")
	}
	if err := n.machine.stopDaemon(ctx, "kubelet"); err != nil {
		return err
	}
	return n.machine.startKubelet(ctx)
}

// SetKubelet replaces the lines that it added before to kubelet's configuration with these,
// and restarts kubelet. It returns ErrForeign for a foreign cluster.
func (n *Node) SetKubelet(ctx context.Context, lines string) error {
	if n.machine == nil {
		return ErrForeign
	}
	if err := n.machine.addToKubelet(lines); err != nil {
		return err
	}
	return n.RestartKubelet(ctx)
}

// RestartContainerd stops containerd with SIGTERM and starts it again.
func (n *Node) RestartContainerd(ctx context.Context) error {
	if n.machine == nil {
		return n.systemctl(ctx, "restart containerd")
	}
	if err := n.machine.stopDaemon(ctx, "containerd"); err != nil {
		return err
	}
	return n.machine.startContainerd(ctx)
}

// StopLibvirtd ends libvirtd with SIGTERM. Its guests go on.
func (n *Node) StopLibvirtd(ctx context.Context) error {
	if n.machine == nil {
		return n.systemctl(ctx, "stop libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket")
	}
	return n.machine.stopDaemon(ctx, "libvirtd")
}

// StartLibvirtd starts libvirtd again.
func (n *Node) StartLibvirtd(ctx context.Context) error {
	if n.machine == nil {
		return n.systemctl(ctx, "start libvirtd.socket libvirtd.service")
	}
	return n.machine.startLibvirtd(ctx)
}

// Crash kills all that runs on the node for Kubernetes and libvirt, but for containerd, as a loss
// of power does. It returns ErrForeign for a foreign cluster.
func (n *Node) Crash(ctx context.Context) error {
	if n.machine == nil {
		return ErrForeign
	}
	// One command: an agent that outlives its guests would report their end.
	return n.machine.run(ctx, `tasks=$(ctr -n k8s.io tasks ls | awk 'NR > 1 {print $2}')
kill -KILL $tasks $(cat /run/kubelet.test-pid /run/libvirtd.test-pid /run/libvirt/qemu/*.pid 2>/dev/null) || true`)
}

// Recover starts what Crash has killed.
func (n *Node) Recover(ctx context.Context) error {
	if n.machine == nil {
		return ErrForeign
	}
	if err := n.machine.startLibvirtd(ctx); err != nil {
		return err
	}
	return n.machine.startKubelet(ctx)
}

func (n *Node) systemctl(ctx context.Context, command string) error {
	_, err := n.TryRun(ctx, nil, "systemctl "+command)
	return err
}

func (n *Node) importImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	defer f.Close()
	if _, err := n.TryRun(ctx, f, "ctr -n k8s.io images import -"); err != nil {
		return fmt.Errorf("image %s: %w", archive, err)
	}
	return nil
}
