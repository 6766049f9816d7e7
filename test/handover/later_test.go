//go:build nightly && !unit

package handover

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// later is a host with libvirt and QEMU of Debian 13, which hack/root.sh makes. Its agent
// is of this machine.
func later(t *testing.T, name, address string) *host {
	t.Helper()
	return newHost(node.NewIn(t, filepath.Join(node.CacheDir(), "roots/debian13")), name, address)
}

func TestAGuestMovesToALaterLibvirt(t *testing.T) {
	// Given a guest on libvirt 9.0 that counts on a disk of both nodes.
	w := shared
	w.b = later(t, w.b.name, w.b.address)
	w = w.given(t, libvirts{})
	v := w.counting(node.Spec{GuestAgent: true, Behaviour: "busy=8 disk=count"})
	// When it is moved to libvirt 11.3, then it runs there alone.
	v.mustMove(w.b, `"bandwidthMiB":200`)
	v.counts()
	// When its VMI is deleted, then the guest is shut down there.
	v.ends()
}

func TestAGuestOfALaterLibvirtIsNotMovedToAnEarlierOne(t *testing.T) {
	// Given a guest that was started by libvirt 11.3, whose machine type libvirt 9.0 does
	// not know.
	w := shared
	w.a = later(t, w.a.name, w.a.address)
	w = w.given(t, libvirts{})
	v := w.guarded(node.Spec{GuestAgent: true})
	v.watchForTwo()
	// When it is to be moved there,
	v.schedule(w.b, `"bandwidthMiB":200`)
	// then it stays and runs on, and the reason names the machine type.
	if v.decided() {
		t.Fatal("it was moved")
	}
	if why := v.whyFailed(); !strings.Contains(why, "pc-q35-10.0") || strings.Contains(why, "\n") {
		t.Errorf("failed: %s", why)
	}
	v.ends()
}
