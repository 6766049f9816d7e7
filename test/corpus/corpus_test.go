//go:build nightly

// Package corpus has domains made by virt-install, started by a real libvirtd, and examined
// as the agent of a migration's target would.
package corpus

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/test/node"
)

const (
	inside = "VMGRACE_CORPUS_INSIDE"
	images = "/var/lib/libvirt/images"
	// network makes a network namespace in which libvirt's networks have a bridge, and SPICE
	// an address, without which it does not listen on the loopback either.
	network = "ip link set lo up && ip link add br0 type bridge && ip address add 192.0.2.1/24 dev br0 && ip link set br0 up"
	// storage has the files that the options name.
	storage = "cd " + images + " && qemu-img create -q -f qcow2 d.qcow2 64M && truncate -s 16M d.raw && truncate -s 1M c.iso"
	defined = "<network><name>default</name><forward mode='bridge'/><bridge name='br0'/></network>"
)

// The tests run in a network namespace of their own.
func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		err := syscall.Exec("/usr/bin/unshare", append([]string{"unshare", "--net", "sh", "-c", network + ` && exec "$@"`, "sh"}, os.Args...), append(os.Environ(), inside+"=1"))
		fmt.Fprintln(os.Stderr, "a network namespace:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var uuid = regexp.MustCompile("<uuid>(.*)</uuid>")

// Given the domains that virt-install makes of many options, each started under libvirt where
// emulation can, when it is examined as the target of a migration would examine it, then it
// passes, or is refused for what the table says.
func TestTheDomainsThatVirtInstallMakesPass(t *testing.T) {
	n := node.New(t)
	text, err := os.ReadFile("testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	run(t, n, "sh", "-c", "mkdir -p "+images+" && "+storage)
	run(t, n, "sh", "-c", `f=$(mktemp) && printf '%s' "$1" >"$f" && virsh -q net-create "$f"; rm "$f"`, "sh", defined)
	n.Virsh(t, "pool-create-as", "default", "dir", "--target", images)
	passed, all := 0, 0
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(line, " | ", 3)
		if len(fields) != 3 || strings.HasPrefix(line, "#") {
			continue
		}
		all++
		t.Run(fields[0], func(t *testing.T) {
			domain, started := made(t, n, "corpus_"+fields[0], strings.TrimSpace(fields[2]))
			_, err := tunnel.Examine(domain, tunnel.Agreement{
				Domain: "corpus_" + fields[0], UUID: uuid.FindStringSubmatch(domain)[1], Paths: []string{images, "/var/log/libvirt/qemu"},
				Networks: []string{"default", "br0", "br0.42", "user"}, Listen: []string{"0.0.0.0"}, Processors: "0-1", NUMANodes: "0",
			})
			want := strings.TrimSpace(fields[1])
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v; want %q", err, want)
			}
			if err == nil {
				passed++
			}
			t.Logf("started: %t; %v", started, err)
		})
	}
	t.Logf("%d of %d pass", passed, all)
}

// made returns a domain as a migration would send it, and whether it could be started here:
// not what asks for KVM or a device that is not there.
func made(t *testing.T, n *node.Node, name, options string) (domain string, started bool) {
	t.Helper()
	if !strings.Contains(options, "--memory ") {
		options += " --memory 128"
	}
	file := t.TempDir() + "/domain.xml"
	run(t, n, "sh", "-c", "virt-install --virt-type qemu --name "+name+" --print-xml "+options+" >"+file)
	if _, err := n.TryVirsh(t.Context(), "create", "--paused", file); err == nil {
		defer n.Virsh(t, "destroy", name)
		return n.Virsh(t, "dumpxml", "--migratable", name), true
	}
	if _, err := n.TryVirsh(t.Context(), "define", file); err != nil {
		return run(t, n, "cat", file), false
	}
	defer n.Virsh(t, "undefine", "--nvram", name)
	return n.Virsh(t, "dumpxml", "--migratable", name), false
}

// run runs a command inside the node for a minute at most.
func run(t *testing.T, n *node.Node, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inside := n.Command(name, args...)
	cmd := exec.CommandContext(ctx, inside.Path, inside.Args[1:]...)
	cmd.Env = inside.Env
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, said.String())
	}
	return string(out)
}
