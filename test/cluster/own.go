package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/test/node"
)

// inside is the API server's URL for the control plane and the nodes.
const inside = "https://10.98.0.1:443"

// own is a cluster of the test's own. Its control plane is in a network namespace. This
// machine reaches the API server through a relay.
type own struct {
	home     *home
	api      *API
	machines []*machine
	others   []*node.Process // other processes of the control plane, with the relay
}

func startOwn(ctx context.Context) (*own, error) {
	if err := preflight(ctx); err != nil {
		return nil, err
	}
	h, err := newHome()
	if err != nil {
		return nil, err
	}
	o := &own{home: h, api: &API{home: h, Dir: h.dir}}
	if err := o.start(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// preflight says in one line what this machine lacks.
func preflight(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster of two nodes needs root: run make e2e, which uses sudo")
	}
	for _, name := range []string{"ip", "socat", "bash", "unshare", "nsenter", "libvirtd", "virsh", "qemu-system-x86_64"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is not installed: run make deps", name)
		}
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "runc", "ctr"} {
		if _, err := program(name); err != nil {
			return err
		}
	}
	for kind, change := range map[string]string{
		"mount": "mount -t tmpfs none /mnt", "net": "ip link add br0 type bridge", "pid": "true", "uts": "true",
	} {
		out, err := exec.CommandContext(ctx, "unshare", "--"+kind, "--fork", "sh", "-c", change).CombinedOutput()
		if err != nil {
			return fmt.Errorf("this machine lets root have no %s namespace of its own: %s: %w", kind, strings.TrimSpace(string(out)), err)
		}
	}
	return nil
}

func (o *own) start(ctx context.Context) error {
	if err := o.startNetwork(ctx); err != nil {
		return err
	}
	// The slow parts of the nodes' start need no API server, so both start at once.
	var both errgroup.Group
	both.Go(func() error {
		return o.api.start(ctx, endpoint{
			enter: o.enter(), address: "0.0.0.0", port: 443, names: []string{"10.98.0.1"},
			// No kube-proxy routes Services, so the server finds webhooks by their
			// endpoints.
			args: []string{"--enable-aggregator-routing=true"},
		})
	})
	for i, name := range []string{"node-a", "node-b"} {
		m := &machine{name: name, index: i + 1, home: o.home}
		o.machines = append(o.machines, m)
		both.Go(func() error { return m.start(ctx) })
	}
	if err := both.Wait(); err != nil {
		return err
	}
	if err := o.startControllers(); err != nil {
		return err
	}
	for _, m := range o.machines {
		if err := o.join(ctx, m); err != nil {
			return err
		}
	}
	return o.ready(ctx)
}

// enter returns the command that enters the control plane's network namespace.
func (o *own) enter() []string {
	return []string{"nsenter", "--net=" + o.api.keeper.namespace("net"), "--"}
}

func (o *own) startNetwork(ctx context.Context) error {
	network, err := script("network.sh")
	if err != nil {
		return err
	}
	o.api.keeper, err = startKeeper(ctx, o.home.path("network.log"), "unshare", "--net", "sh", "-c", network+killGroup)
	if err != nil {
		return err
	}
	port, err := node.FreePort()
	if err != nil {
		return err
	}
	o.api.URL = "https://127.0.0.1:" + strconv.Itoa(port)
	// A unix socket is reachable from every network namespace.
	socket := o.home.path("api.sock")
	if err := o.run("relay-in", append(o.enter(), "socat", "UNIX-LISTEN:"+socket+",fork,mode=600", "TCP:10.98.0.1:443")...); err != nil {
		return err
	}
	return o.run("relay-out", "socat", "TCP-LISTEN:"+strconv.Itoa(port)+",bind=127.0.0.1,reuseaddr,fork", "UNIX-CONNECT:"+socket)
}

// run starts a process of the control plane.
func (o *own) run(name string, command ...string) error {
	p, err := o.api.keeper.start(o.home.path(name+".log"), command...)
	if err != nil {
		return err
	}
	o.others = append(o.others, p)
	return nil
}

func (o *own) startControllers() error {
	pki := o.api.pki
	flags := map[string][]string{
		// The tests need a silent node to be noticed quickly.
		"kube-controller-manager": {"--node-monitor-grace-period=12s", "--node-monitor-period=1s",
			"--use-service-account-credentials", "--service-account-private-key-file=" + pki.saKey(),
			"--root-ca-file=" + pki.ca(), "--cluster-signing-cert-file=" + pki.ca(), "--cluster-signing-key-file=" + pki.caKey()},
		"kube-scheduler": nil,
	}
	for name, more := range flags {
		path, err := program(name)
		if err != nil {
			return err
		}
		config, err := pki.kubeconfig(name, inside, pkix.Name{CommonName: "system:" + name})
		if err != nil {
			return err
		}
		command := append(o.enter(), path, "--kubeconfig="+config, "--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false")
		if err := o.run(name, append(command, more...)...); err != nil {
			return err
		}
	}
	return nil
}

// join connects a node to the network and starts its kubelet.
func (o *own) join(ctx context.Context, m *machine) error {
	link := "to-" + m.name
	steps := [][]string{
		append(o.enter(), "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(m.keeper.PID())),
		append(o.enter(), "ip", "link", "set", link, "master", "br0", "up"),
		m.command("ip addr add " + m.address() + "/24 dev eth0 && ip link set eth0 up && ip route add default via 10.98.0.1"),
		append(o.enter(), "ip", "route", "add", m.podNet(), "via", m.address()),
	}
	for _, step := range steps {
		if out, err := exec.CommandContext(ctx, step[0], step[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("network of %s: %s: %s: %w", m.name, strings.Join(step, " "), out, err)
		}
	}
	subject := pkix.Name{CommonName: "system:node:" + m.name, Organization: []string{"system:nodes"}}
	config, err := o.api.pki.kubeconfig(m.name, inside, subject)
	if err != nil {
		return err
	}
	if err := m.configureKubelet(o.api.pki.ca(), config); err != nil {
		return err
	}
	return m.startKubelet(ctx)
}

// ready waits until pods can run: the nodes are Ready and have no taints, and
// ServiceAccounts are made.
func (o *own) ready(ctx context.Context) error {
	const states = `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{.spec.taints},{end}`
	var nodes string
	var err error
	up := func() bool {
		nodes, err = o.api.TryKubectl(ctx, "", "get", "nodes", "-o", states)
		if err == nil {
			_, err = o.api.TryKubectl(ctx, "", "get", "serviceaccount", "default")
		}
		return err == nil && nodes == "True,True,"
	}
	if !node.Poll(ctx, waitTimeout, up) {
		return fmt.Errorf("the nodes do not get ready: %s: %w%s", nodes, err, o.said())
	}
	return nil
}

// said returns the end of every log, for a message.
func (o *own) said() string {
	var b strings.Builder
	for _, pattern := range []string{"*.log", "*/*.log"} {
		logs, _ := filepath.Glob(o.home.path(pattern)) // the pattern is valid
		for _, log := range logs {
			fmt.Fprintf(&b, "\n%s:\n%s", log, tail(readText(log)))
		}
	}
	return b.String()
}

func (o *own) close() error {
	for _, m := range o.machines {
		m.close()
	}
	defer func() {
		for _, p := range o.others {
			p.Exited(waitTimeout) // the keeper has killed it, this reaps it
		}
	}()
	return o.api.Close()
}
