//go:build !unit

package handover

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// long tells whether VMGRACE_SOAK asks for the long variants of these tests.
func long() bool { return os.Getenv("VMGRACE_SOAK") != "" }

// linked is like given, with something to interrupt each agent's connections: a link before
// its port, a link before the API server, and wires before its libvirtd and its QEMUs' monitors.
func linked(tb testing.TB, k kind) world {
	tb.Helper()
	w := shared
	w.TB, w.kind = tb, k
	w.prepare()
	all := &moments{at: map[string]func() bool{}}
	for _, h := range []**host{&w.a, &w.b} {
		linked := **h
		*h = &linked
		linked.address = "127.0.0.1" // the link before the agent's port has the host's address
		linked.moments = all
		newWire(w, all, filepath.Join(linked.Dir, "run", "wire-sock"), linked.Socket())
		linked.toAPI = newLink(w, "127.0.0.1:0", strings.TrimPrefix(w.api.URL, "https://"))
		text, err := os.ReadFile(w.api.Kubeconfig)
		if err != nil {
			tb.Fatal(err)
		}
		kubeconfig := filepath.Join(tb.TempDir(), "kubeconfig")
		if err := os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(text), w.api.URL, "https://"+linked.toAPI.address())), 0o600); err != nil {
			tb.Fatal(err)
		}
		port := linked.start(w, kubeconfig, "--migration-address=127.0.0.2")
		linked.toAgent = newLink(w, net.JoinHostPort("127.0.0.2", port), net.JoinHostPort("127.0.0.1", port))
	}
	w.certified()
	return w
}

// Given agents that are cut off from each other and from the API server at the worst
// moment: the target's libvirt has said that all is there, and the source's libvirt ends
// its QEMU. Then the guest stays paused on the target, and it runs there as soon as the
// target's agent hears that the source's guest is gone. Otherwise the guest could run twice
// and destroy its disk, or stay paused for ever.
func TestAgentsCutOffAtTheHandoverRunTheGuestOnce(t *testing.T) {
	ofBothKindsIfLong(t, linked, cutOffAtTheHandover)
}

func cutOffAtTheHandover(w world) {
	t := w.TB
	v := w.counting(node.Spec{GuestAgent: true, Behaviour: "disk=count"})
	cut := 12 * time.Second
	if long() {
		cut = time.Minute
	}
	heal := map[string]func(){
		"the agents hear each other":    func() { w.b.toAgent.pass(); w.a.toAgent.pass() },
		"the agents hear an API server": func() { w.a.toAPI.pass(); w.b.toAPI.pass() },
	}
	cases := []string{"the agents hear each other"}
	if long() {
		cases = append(cases, "the agents hear an API server")
	}
	for _, first := range cases {
		from, to := v.here.host, w.other(v.here.host)
		// When the agents are cut off at that moment,
		said := to.agent.Said("what becomes of a guest is not decided")
		to.moments.when(finished, func() bool {
			to.toAgent.hold(there)
			from.toAPI.hold()
			to.toAPI.hold()
			return true
		})
		v.schedule(to, "")
		node.Eventually(w, time.Minute, func() bool { return from.state(v.Domain) == "" && to.state(v.Domain) == "paused" }, "it has not left")
		// then the guest runs on neither node, and the agent logs that,
		node.Never(w, cut, func() bool { return from.state(v.Domain) != "" || to.state(v.Domain) != "paused" }, "it does not stay paused")
		to.agent.WaitSaid(w, "what becomes of a guest is not decided", said+1)
		// and it runs on one as soon as the agents hear of each other, directly or through
		// the API server.
		healed := time.Now()
		heal[first]()
		node.Eventually(w, soon, func() bool { return to.runs(v.Domain) }, "it does not run")
		t.Logf("cut off for %v, it runs %v after %s", cut, time.Since(healed).Round(time.Millisecond), first)
		for _, heal := range heal {
			heal()
		}
		if !v.decided() {
			t.Errorf("it was not moved: %s", v.whyFailed())
		}
		v.counts()
	}
	v.ends()
}

// Given a migration whose last phase loses a question or an answer of libvirt's RPC. Then
// the guest runs on exactly one node, both agents say on which, and the guest's disk has
// one writer. Otherwise the user would lose the guest or its disk.
func TestALostAnswerOfTheLastPhaseLeavesOneGuest(t *testing.T) {
	w := linked(t, libvirts{})
	v := w.counting(node.Spec{GuestAgent: true, Behaviour: "disk=count"})
	lost := func() bool { return false }
	// libvirt 9.0 lets a guest go on whose answer is lost. Later ones cannot, while QEMU at the target
	// has locked the disk.
	locked := !strings.Contains(w.a.Virsh(w, "version", "--daemon"), "daemon: 9.0.")
	for _, c := range []struct {
		what  string
		lose  func(from, to *host)
		after func(from, to *host)
		moves bool
	}{
		{what: "the question whether it is there", lose: func(_, to *host) { to.moments.when(finish, lost) }},
		{what: "the answer that it is there", lose: func(_, to *host) { to.moments.when(finished, lost) }, moves: locked},
		{what: "that it is over, as the source's libvirt says", lose: func(from, _ *host) { from.moments.when(performed, lost) }, moves: true},
		{
			what:  "the answer that it is there, with the source's libvirtd",
			lose:  func(from, to *host) { to.moments.when(finished, func() bool { from.Libvirtd().Kill(); return false }) },
			after: func(from, _ *host) { from.waitLibvirtd(w) },
			moves: true,
		},
	} {
		// When the message is lost,
		from, to := v.here.host, w.other(v.here.host)
		c.lose(from, to)
		v.schedule(to, "")
		if c.after != nil {
			c.after(from, to)
		}
		// then the guest runs on one node, and both agents say on which.
		if moved := v.decided(); moved != c.moves {
			t.Errorf("%s: moved %v: %s", c.what, moved, v.whyFailed())
		}
		t.Logf("lost: %s: %s, %s", c.what, v.phase(), v.whyFailed())
		v.counts()
	}
	v.ends()
}
