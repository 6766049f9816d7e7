//go:build !unit

package handover

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// kind is one of the two kinds of VMs: who has started its QEMU.
type kind interface {
	// flags are those of the agents.
	flags(h *host) []string
	// boot boots the VM's guest on v.here, which has a launcher pod but no shim yet.
	boot(v *vm, s node.Spec)
	// receive starts the shim of v.there, to which the guest is to be moved.
	receive(v *vm)
	// job reports whether the guest is being sent, and by how much it is slowed down, in percent.
	job(v *vm) (sent bool, slowed int)
	// faults are those of a migration.
	faults() []fault
	// user does to the guest what virsh suspend or virsh resume does.
	user(v *vm, command string)
}

// ofBothKinds runs a test for both kinds of VMs, in a world that start has started for it.
func ofBothKinds(t *testing.T, start func(tb testing.TB, k kind) world, test func(w world)) {
	t.Helper()
	t.Run("libvirt", func(t *testing.T) { test(start(t, libvirts{})) })
	t.Run("in its pod", func(t *testing.T) { test(start(t, inPods{})) })
}

// ofBothKindsIfLong is ofBothKinds with VMGRACE_SOAK. Otherwise only a domain of libvirt's meets what the
// agents and QEMU do in the same way for both kinds.
func ofBothKindsIfLong(t *testing.T, start func(tb testing.TB, k kind) world, test func(w world)) {
	t.Helper()
	if long() {
		ofBothKinds(t, start, test)
		return
	}
	t.Run("libvirt", func(t *testing.T) { test(start(t, libvirts{})) })
}

// some returns all of a test's moments with VMGRACE_SOAK. Otherwise a domain of libvirt's meets every
// second one, and a guest in its pod few: the agents do the same for both kinds.
func (w world) some(all, few []string) (some []string) {
	switch {
	case long():
		return all
	case w.kind == (inPods{}):
		return few
	}
	for i := 0; i < len(all); i += 2 {
		some = append(some, all[i])
	}
	return some
}

// libvirts is the kind whose QEMU is a child of the node's libvirtd.
type libvirts struct{}

func (libvirts) flags(h *host) []string {
	if h.moments == nil {
		return nil
	}
	return []string{"--libvirt-uri=qemu+unix:///system?socket=/run/libvirt/wire-sock"}
}

func (k libvirts) boot(v *vm, s node.Spec) {
	v.w.Helper()
	g := v.w.a.Boot(v.w, s)
	v.here.shim = v.here.launcher.Shim(v.w, "--pid-file="+v.here.launcher.Path("vm.pid"))
	v.VM = &node.VM{Guest: g, Agent: v.here.agent, Launcher: v.here.launcher, Shim: v.here.shim}
}

func (libvirts) receive(v *vm) {
	v.w.Helper()
	v.there.shim = v.there.launcher.Shim(v.w, "--pid-file="+v.there.launcher.Path("vm.pid"))
}

var throttle = regexp.MustCompile(`Auto converge throttle: +([1-9]\d*)`)

func (libvirts) job(v *vm) (sent bool, slowed int) {
	v.w.Helper()
	said, err := v.here.TryVirsh(v.w.Context(), "domjobinfo", v.Domain)
	if err != nil {
		return false, 0 // the guest has left
	}
	if m := throttle.FindStringSubmatch(said); m != nil {
		slowed, _ = strconv.Atoi(m[1]) // only digits
	}
	return v.there.state(v.Domain) != "" && strings.Contains(said, "Data remaining"), slowed
}

func (libvirts) user(v *vm, command string) {
	v.w.Helper()
	v.here.Virsh(v.w, command, v.Domain)
}

func (libvirts) faults() []fault {
	return append(faults(),
		fault{what: "the source's libvirtd is killed", do: func(_ string, from, _ *host) error { from.Libvirtd().Kill(); return nil },
			undo: func(w world, from, _ *host) { from.waitLibvirtd(w) }},
		fault{what: "the target's libvirtd is killed", do: func(_ string, _, to *host) error { to.Libvirtd().Kill(); return nil },
			undo: func(w world, _, to *host) { to.waitLibvirtd(w) }})
}

// waitSent waits until the guest is being sent.
func (v *vm) waitSent() {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool { sent, _ := v.w.kind.job(v); return sent }, "nothing is sent")
}

// waitLibvirtd waits until somebody has killed the host's libvirtd and starts it again.
func (h *host) waitLibvirtd(w world) {
	w.Helper()
	if _, ended := h.Libvirtd().Exited(time.Minute); !ended {
		w.Fatalf("libvirtd of %s was not killed", h.name)
	}
	if err := h.StartLibvirtd(w.Context()); err != nil {
		w.Fatal(err)
	}
}
