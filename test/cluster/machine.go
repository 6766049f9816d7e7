package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/test/node"
)

// machine is a node of the test's own: namespaces with a containerd, a kubelet and a
// libvirtd.
type machine struct {
	name  string
	index int // from 1
	home  *home

	keeper  *keeper
	assets  string // directory of hack/k8s/build.sh
	kubelet string // kubelet's command
	// daemons are, by name, the processes outside the machine's PID namespace that wait for
	// containerd, kubelet and libvirtd.
	daemons map[string]*node.Process
}

func (m *machine) dir() string     { return m.home.path(m.name) }
func (m *machine) address() string { return "10.98.0." + strconv.Itoa(10+m.index) }
func (m *machine) podNet() string  { return fmt.Sprintf("10.244.%d.0/24", m.index) }

// start makes the machine with containerd and libvirtd. It makes no network.
func (m *machine) start(ctx context.Context) error {
	m.daemons = map[string]*node.Process{}
	if err := makeCgroup(m.home.name(), m.name); err != nil {
		return err
	}
	root, err := assets()
	if err != nil {
		return err
	}
	m.assets = filepath.Join(root, kubernetes())
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	values := map[string]string{
		"Assets": m.assets, "Dir": m.dir(), "PodNet": m.podNet(),
		"UUID": fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
	}
	for path, name := range map[string]string{
		"containerd.toml": "containerd.toml", "cni/pods.conflist": "cni.conflist",
		"libvirt/libvirtd.conf": "libvirtd.conf", "libvirt/qemu.conf": "qemu.conf",
		"node.sh": "node.sh",
	} {
		if _, err := m.home.configure(filepath.Join(m.name, path), name, values); err != nil {
			return err
		}
	}
	m.keeper, err = startKeeper(ctx, filepath.Join(m.dir(), "node.log"),
		"unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child", "--mount-proc",
		"bash", filepath.Join(m.dir(), "node.sh"), m.name, m.dir(), filepath.Join(node.CacheDir(), "libvirt"))
	if err != nil {
		return err
	}
	if err := m.startContainerd(ctx); err != nil {
		return err
	}
	if err := m.importImages(ctx, filepath.Join(m.assets, "images")); err != nil {
		return err
	}
	return m.startLibvirtd(ctx)
}

func (m *machine) startLibvirtd(ctx context.Context) error {
	return m.startDaemon(ctx, "libvirtd", "libvirtd --listen", "virsh -q -c qemu:///system list")
}

// command returns the command that runs a shell script in the machine.
func (m *machine) command(script string) []string {
	args := []string{"nsenter"}
	for _, kind := range []string{"mnt=mount", "net=net", "uts=uts", "pid_for_children=pid"} {
		file, flag, _ := strings.Cut(kind, "=")
		args = append(args, "--"+flag+"="+m.keeper.namespace(file))
	}
	path := "PATH=" + quote(filepath.Join(m.assets, "bin")) + `:"$PATH"; `
	return append(args, "--", "sh", "-c", path+script)
}

func (m *machine) run(ctx context.Context, script string) error {
	command := m.command(script)
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %s: %w: %s", m.name, script, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// startDaemon starts a program, which must not be running, and waits until the script check
// succeeds.
func (m *machine) startDaemon(ctx context.Context, name, command, check string) error {
	// Only processes inside know its process id, so the script writes it to a file.
	line := m.command("echo $$ >/run/" + name + ".test-pid; exec " + command)
	cmd := exec.Command(line[0], line[1:]...)
	log := filepath.Join(m.dir(), name+".log")
	p, err := node.StartProcess(cmd, log)
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	m.daemons[name] = p
	var last error
	up := func() bool {
		last = m.run(ctx, check)
		return last == nil || !p.Running()
	}
	if !node.Poll(ctx, waitTimeout, up) || !p.Running() {
		return fmt.Errorf("%s on %s does not start: %w: %s", name, m.name, last, tail(p.Log()))
	}
	return nil
}

// stopDaemon ends a program with SIGTERM and waits for its end.
func (m *machine) stopDaemon(ctx context.Context, name string) error {
	if err := m.run(ctx, "kill -TERM $(cat /run/"+name+".test-pid)"); err != nil {
		return err
	}
	if _, ok := m.daemons[name].Exited(waitTimeout); !ok {
		return fmt.Errorf("%s on %s does not end on SIGTERM", name, m.name)
	}
	return nil
}

func (m *machine) startContainerd(ctx context.Context) error {
	return m.startDaemon(ctx, "containerd", "containerd -c "+filepath.Join(m.dir(), "containerd.toml"), "ctr version")
}

func (m *machine) startKubelet(ctx context.Context) error {
	return m.startDaemon(ctx, "kubelet", m.kubelet, "bash -c '</dev/tcp/127.0.0.1/10248'")
}

func (m *machine) configureKubelet(ca, kubeconfig string) error {
	config, err := m.home.configure(filepath.Join(m.name, "kubelet.yaml"), "kubelet.yaml", map[string]string{
		"Cgroup": m.home.name() + "/" + m.name, "Address": m.address(), "CA": ca,
	})
	if err != nil {
		return err
	}
	m.kubelet = strings.Join([]string{"kubelet", "--config=" + config, "--kubeconfig=" + kubeconfig,
		"--hostname-override=" + m.name, "--node-ip=" + m.address()}, " ")
	return nil
}

func (m *machine) addToKubelet(lines string) error {
	const added = "# added by a test:\n"
	file := filepath.Join(m.dir(), "kubelet.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("kubelet's configuration: %w", err)
	}
	shipped, _, _ := strings.Cut(string(text), added)
	if err := os.WriteFile(file, []byte(shipped+added+lines), 0o600); err != nil {
		return fmt.Errorf("kubelet's configuration: %w", err)
	}
	return nil
}

func (m *machine) importImages(ctx context.Context, dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil || len(archives) == 0 {
		return errors.Join(fmt.Errorf("no images in %s: run make k8s", dir), err)
	}
	n := &Node{Name: m.name, machine: m}
	for _, archive := range archives {
		if err := n.importImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) close() {
	m.keeper.close()
	for _, p := range m.daemons {
		p.Exited(waitTimeout) // the daemon itself died with the keeper
	}
}
