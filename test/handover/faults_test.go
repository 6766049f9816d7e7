//go:build !unit

package handover

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// The moments of a migration, in addition to the frames of a wire.
const (
	scheduled = "scheduled"
	beingSent = "sending"
)

// fault is a process that dies or a connection that is cut. undo repairs it.
type fault struct {
	what string
	do   func(domain string, from, to *host) error
	undo func(w world, from, to *host)
	// kills: the fault may end the guest.
	kills bool
}

// faults are those of both kinds.
func faults() []fault {
	return []fault{
		{what: "the API server is away", do: func(_ string, from, to *host) error { from.toAPI.hold(); to.toAPI.hold(); return nil }, undo: func(w world, from, to *host) {
			w.lasts(2 * time.Second)
			from.toAPI.pass()
			to.toAPI.pass()
		}},
		{what: "the link between the nodes is cut", do: func(_ string, _, to *host) error { to.toAgent.hold(); return nil }, undo: func(w world, _, to *host) {
			if w.lasts(2 * time.Second); long() {
				w.lasts(40 * time.Second) // longer than libvirt's keepalives
			}
			to.toAgent.pass()
		}},
		{what: "the source's QEMU is killed", do: func(domain string, from, _ *host) error { return from.signal(domain, 9) }, kills: true},
		{what: "the target's QEMU is killed", do: func(domain string, _, to *host) error { return to.signal(domain, 9) }, kills: true},
	}
}

// lasts waits as long as a fault lasts.
func (w world) lasts(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.Context().Done():
	}
}

// Given a migration and a fault at any of its moments. Then the guest runs on exactly one
// node, nothing is left on the other one, and a later migration succeeds. Otherwise the
// user would lose the guest, or two guests would write on one disk. With VMGRACE_SOAK the
// test tries each fault at each moment. Without it the test tries two faults, each at one
// moment of the handover: those that TestWhateverDiesWhileAGuestIsSentLeavesOneGuest does
// not cover.
func TestWhateverDiesAtAnyMomentOfAMoveLeavesOneGuest(t *testing.T) {
	ofBothKinds(t, linked, whateverDiesAtAnyMoment)
}

func whateverDiesAtAnyMoment(w world) {
	t := w.TB
	var v *vm
	moments := []string{scheduled, prepare, beingSent, finish, finished, performed}
	tried, moved := 0, 0
	for m, at := range moments {
		for f, fault := range w.kind.faults() {
			if !long() && (f > 1 || f != (m+3)%len(moments)) {
				continue
			}
			if strings.Contains(fault.what, "target's QEMU") && (at == scheduled || at == prepare) || at == performed && fault.kills {
				continue // the guest's QEMU does not exist yet, or no longer
			}
			if v == nil {
				v = w.counting(node.Spec{GuestAgent: true, Behaviour: "disk=count"})
			}
			// When the fault happens at that moment,
			tried++
			v.struck(at, fault)
			// then the guest runs on one node, and nothing is left on the other one.
			if fault.kills && v.killed() {
				t.Logf("%s: %s: the guest is gone: %s, %s", at, fault.what, v.states(), v.whyFailed())
				v = nil
				continue
			}
			if v.decided() {
				moved++
			}
			t.Logf("%s: %s: %s, %s", at, fault.what, v.phase(), v.whyFailed())
			v.counts()
			w.nothingLeft()
		}
	}
	t.Logf("%d of %d moved the guest", moved, tried)
	if v == nil {
		v = w.counting(node.Spec{GuestAgent: true, Behaviour: "disk=count"})
	}
	// When the guest is moved after all these faults, then it moves.
	v.schedule(w.other(v.here.host), "")
	if !v.decided() {
		t.Errorf("the last try fails: %s", v.whyFailed())
	}
	v.ends()
}

// struck starts a migration, causes the fault at that moment of it and repairs the fault.
func (v *vm) struck(at string, f fault) {
	w := v.w
	w.Helper()
	from, to, domain := v.here.host, w.other(v.here.host), v.Domain
	struck := make(chan error, 1)
	hit := func() bool { struck <- f.do(domain, from, to); return true }
	options := ""
	switch at {
	case beingSent:
		options = `"bandwidthMiB":8`
	case scheduled:
		hit()
	default:
		to.moments.when(at, hit)
	}
	v.schedule(to, options)
	if at == beingSent {
		v.waitSent()
		hit()
	}
	select {
	case err := <-struck:
		if err != nil {
			w.Errorf("%s: %s: %v", at, f.what, err)
		}
	case <-time.After(time.Minute):
		w.Fatalf("the migration does not come to %s: %s", at, v.states())
	}
	if f.undo != nil {
		f.undo(w, from, to)
	}
}

// killed waits until the migration is decided and tells whether the guest is gone. If so,
// it removes what the guest has left.
func (v *vm) killed() bool {
	w := v.w
	w.Helper()
	var said string
	node.Eventually(w, 2*time.Minute, func() bool {
		said = v.states()
		return said == "Gone/Running" || said == "Running/Absent" || said == "Gone/Absent"
	}, "the migration of %s is not decided", v.Name)
	if said == "Gone/Running" || v.here.runs(v.Domain) {
		return false
	}
	node.Eventually(w, soon, func() bool { return v.here.state(v.Domain) == "" && v.there.state(v.Domain) == "" }, "something is left of %s", v.Name)
	v.patch(`{"phase":"Failed"}`)
	for _, p := range []place{v.here, v.there} {
		p.shim.Kill()
		w.api.Kubectl(w, "delete", "pod", p.pod, "--grace-period=0", "--force")
	}
	w.api.Kubectl(w, "delete", "vmi", v.Name)
	return true
}

// nothingLeft waits until the agents have removed their sockets and files of all
// migrations.
func (w world) nothingLeft() {
	w.Helper()
	for _, h := range []*host{w.a, w.b} {
		var names []string
		node.Eventually(w, soon, func() bool {
			files, err := os.ReadDir(filepath.Join(h.agent.StateDir, "migration"))
			if err != nil && !os.IsNotExist(err) {
				w.Fatal(err)
			}
			names = nil
			for _, f := range files {
				names = append(names, f.Name())
			}
			return len(names) == 0
		}, "%s has left %v", h.name, names)
	}
}
