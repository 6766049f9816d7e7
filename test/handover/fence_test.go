//go:build !unit

package handover

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/test/node"
)

// fence reports the source's state in place of its agent, as the controller does for a node that
// was declared dead.
func (v *vm) fence() {
	v.w.Helper()
	v.patch(`{"migrationState":{"vmgraceSourceState":"Gone","vmgraceSourceFenced":"taint"}}`)
}

// undecided starts a migration of a guest and loses the source's agent at the moment at which the
// target has all of the guest: the copy waits, paused. also is what else happens then.
func (v *vm) undecided(also func(from *host)) {
	w := v.w
	w.Helper()
	from, to := v.here.host, w.other(v.here.host)
	lost := make(chan struct{})
	to.moments.when(finished, func() bool {
		_ = from.agent.Signal(unix.SIGSTOP) // libvirt lets the guest run on as soon as its connection ends
		also(from)
		from.agent.Kill()
		close(lost)
		return false // the answer is lost, too
	})
	v.schedule(to, "")
	select {
	case <-lost:
	case <-time.After(time.Minute):
		w.Fatalf("the migration does not come to its last answer: %s", v.states())
	}
	node.Eventually(w, soon, func() bool { return to.state(v.Domain) == "paused" && v.states() == "/Arrived" }, "the copy is not paused: %s", v.states())
}

// Given a node whose agent, libvirtd and QEMU all die when the guest has arrived at the target. When
// the node is declared dead, then the guest runs at the target, and not before. When the node
// comes back, nothing of the guest is left on it. Otherwise the copy would stay paused for ever.
func TestACopyOfADeadNodeRunsOnceItIsFenced(t *testing.T) {
	ofBothKindsIfLong(t, linked, copyOfADeadNode)
}

func copyOfADeadNode(w world) {
	t := w.TB
	v := w.counting(node.Spec{GuestAgent: true, Behaviour: "disk=count"})
	to := w.other(v.here.host)
	v.undecided(func(from *host) {
		_ = from.signal(v.Domain, 9) // libvirt may have ended it
		from.Libvirtd().Kill()
	})
	node.Never(w, 3*time.Second, func() bool { return to.state(v.Domain) != "paused" }, "it runs without a proof")
	fenced := time.Now()
	v.fence()
	node.Eventually(w, soon, func() bool { return to.runs(v.Domain) }, "it does not run")
	if after := time.Since(fenced); after < migration.FenceDelay {
		t.Errorf("it runs %v after the node was fenced: its agent may still end it", after)
	}
	from := v.here.host
	from.waitLibvirtd(w)
	from.agent.Start(w)
	node.Eventually(w, soon, func() bool { return from.state(v.Domain) == "" && v.states() == "Gone/Running" }, "the guest is left on the node: %s", v.states())
	w.api.Kubectl(w, "label", "vmi", v.Name, "kubevirt.io/nodeName="+to.name, "--overwrite")
	v.patch(`{"phase":"Succeeded"}`)
	node.Eventually(w, soon, func() bool { _, kept := from.agent.StatusOf(w, v.Guest); return !kept }, "its record is left on the node")
	v.here = v.there
	v.counts()
	w.api.Kubectl(w, "delete", "vmi", v.Name)
	if s := v.here.launcher.WaitStopped(w, soon); s.Outcome != "Graceful" || s.Cause != "VMIDeleted" {
		t.Errorf("status.json on %s: %+v", to.name, s)
	}
}
