package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// Guest is one instance of a domain on a node: a QEMU process that the node's libvirtd
// started and that is in no pod's cgroup.
type Guest struct {
	node.Spec
	// Domain is the domain's name, <namespace>_<name>.
	Domain string
	Node   *Node
	// PID is QEMU's process id on the node.
	PID int

	start  string // field 22 of /proc/<pid>/stat
	serial string // path on the node
}

// Boot starts a guest and waits until it is up. A firmware guest only has to run. The guest
// is killed when the test ends.
func (n *Node) Boot(t T, s node.Spec) *Guest {
	t.Helper()
	g := n.Start(t, s)
	g.WaitUp(t)
	return g
}

// Start is Boot without the wait, so that several guests can boot at once.
func (n *Node) Start(t T, s node.Spec) *Guest {
	t.Helper()
	s = s.Complete()
	g := &Guest{Spec: s, Domain: s.DomainName(), Node: n}
	g.serial = "/var/lib/libvirt/" + g.Domain + ".serial"
	var kernel, initrd string
	if !s.Firmware {
		kernel, initrd = n.guestImage(t)
	}
	text, err := s.DomainXML(kernel, initrd, g.serial)
	if err != nil {
		t.Fatalf("%v", err)
	}
	n.create(t, s, text)
	g.find(t)
	return g
}

// find finds QEMU's process on the guest's node, and makes the test kill it at its end.
func (g *Guest) find(t T) {
	t.Helper()
	pid, err := strconv.Atoi(g.Node.Run(t, "cat "+quote("/run/libvirt/qemu/"+g.Domain+".pid")))
	if err != nil {
		t.Fatalf("QEMU's pid file of %s on %s: %v", g.Domain, g.Node.Name, err)
	}
	g.PID = pid
	g.start = g.Node.Run(t, fmt.Sprintf("cut -d ' ' -f 22 /proc/%d/stat", g.PID))
	t.Cleanup(func() { g.cleanup(t) })
}

// At returns the guest on another node, after a migration to it.
func (g *Guest) At(t T, n *Node) *Guest {
	t.Helper()
	there := &Guest{Spec: g.Spec, Domain: g.Domain, Node: n, serial: g.serial}
	there.find(t)
	return there
}

func (n *Node) create(t T, s node.Spec, xml []byte) {
	t.Helper()
	file := "/run/" + s.DomainName() + ".test.xml"
	script := "rm -f " + quote("/var/lib/libvirt/"+s.DomainName()+".serial") + "; cat >" + quote(file) + " && "
	if s.Persistent {
		script += virsh("define", file) + " && " + virsh("start", s.DomainName())
	} else {
		script += virsh("create", file)
	}
	if _, err := n.TryRun(t.Context(), bytes.NewReader(xml), script); err != nil {
		t.Fatalf("%v", err)
	}
}

// guestImage returns the kernel and initramfs as paths on the node.
func (n *Node) guestImage(t T) (kernel, initrd string) {
	t.Helper()
	kernel, initrd = node.GuestImage(t)
	if n.machine != nil {
		return kernel, initrd // the node has this machine's file system
	}
	dir := "/var/tmp/vmgrace-guest-" + filepath.Base(filepath.Dir(kernel))
	return n.upload(t, kernel, dir), n.upload(t, initrd, dir)
}

// upload copies a file to a directory on the node, unless it is there already.
func (n *Node) upload(t T, file, dir string) string {
	t.Helper()
	there := filepath.Join(dir, filepath.Base(file))
	if _, err := n.TryRun(t.Context(), nil, "test -e "+quote(there)); err == nil {
		return there
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("guest: %v", err)
	}
	defer f.Close()
	script := "mkdir -p " + quote(dir) + " && cat >" + quote(there+".part") + " && mv " + quote(there+".part", there)
	if _, err := n.TryRun(t.Context(), f, script); err != nil {
		t.Fatalf("guest: %v", err)
	}
	return there
}

// WaitUp waits until a guest that was started is up.
func (g *Guest) WaitUp(t T) {
	t.Helper()
	if g.Firmware {
		return
	}
	up := func() bool { return strings.Contains(g.Serial(t), "vmgrace-guest: up") || g.Gone(t) }
	node.Eventually(t, waitTimeout, up, "guest %s is up", g.Domain)
	if g.Gone(t) {
		t.Fatalf("guest %s ended while it booted: %s", g.Domain, g.Serial(t))
	}
}

// Serial returns what the guest has written to its serial console.
func (g *Guest) Serial(t T) string {
	t.Helper()
	return g.Node.Run(t, "cat "+quote(g.serial))
}

// Presses returns how many presses of the power button the guest has noticed. A firmware
// guest notices none.
func (g *Guest) Presses(t T) int {
	t.Helper()
	return strings.Count(g.Serial(t), "vmgrace-guest: press ")
}

// lives returns a script that succeeds while the QEMU process has not ended.
func (g *Guest) lives() string {
	return fmt.Sprintf(`{ read -r _ _ state _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ start _ </proc/%d/stat; } 2>/dev/null && `+
		`[ "$start" = %s ] && [ "$state" != Z ]`, g.PID, g.start)
}

// Gone reports whether the QEMU process has ended.
func (g *Guest) Gone(t T) bool {
	t.Helper()
	return g.Node.Run(t, "if "+g.lives()+"; then echo lives; else echo gone; fi") == "gone"
}

// WaitGone waits for the end of the QEMU process and returns its time, by the node's clock
// and to 10 ms.
func (g *Guest) WaitGone(t T, within time.Duration) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	// The loop on the node ends by itself even where nothing reaches the node any more.
	script := fmt.Sprintf("n=%d; while %s; do n=$((n - 1)); [ $n -gt 0 ] || exit 1; sleep 0.01; done; date +%%s%%N", within/(10*time.Millisecond), g.lives())
	out, err := g.Node.TryRun(ctx, nil, script)
	if err != nil {
		t.Fatalf("QEMU of %s is still there after %v: %v", g.Domain, within, err)
	}
	ns, err := strconv.ParseInt(out, 10, 64)
	if err != nil {
		t.Fatalf("time on %s: %v", g.Node.Name, err)
	}
	return time.Unix(0, ns)
}

// Virsh runs a virsh command on the domain.
func (g *Guest) Virsh(t T, command string, args ...string) string {
	t.Helper()
	return g.Node.Virsh(t, append([]string{command, g.Domain}, args...)...)
}

func (g *Guest) cleanup(t T) {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if t.Failed() {
		serial, _ := g.Node.TryRun(ctx, nil, "cat "+quote(g.serial)) // the text is only for a message
		t.Logf("guest %s said:\n%s", g.Domain, serial)
	}
	// libvirt may be dead or hang, so kill ends the guest.
	if _, err := g.Node.TryRun(ctx, nil, fmt.Sprintf("if %s; then kill -9 %d; fi", g.lives(), g.PID)); err != nil {
		t.Logf("guest %s: %v", g.Domain, err)
	}
	if g.Persistent {
		if _, err := g.Node.TryRun(ctx, nil, virsh("undefine", g.Domain)); err != nil {
			t.Logf("guest %s: %v", g.Domain, err)
		}
	}
}
