//go:build !unit

package handover

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// sourcePoints returns the failpoints at which the test kills the source's agent, in the
// order in which a migration passes them.
func sourcePoints() []string {
	return []string{
		"migration-status-Running", "migration-status-Running.done", "migration-send", "migration-send.done",
		"migration-moved", "migration-moved.done", "migration-status-Gone", "migration-status-Gone.done",
	}
}

// targetPoints returns the failpoints at which the test kills the target's agent. They lack
// the state Arrived, which the target reports only if the source's report is late: see
// cut_test.go.
func targetPoints() []string {
	return []string{
		"migration-status-PreparingTarget", "migration-status-PreparingTarget.done", "migration-status-TargetReady", "migration-status-TargetReady.done",
		"migration-resume", "migration-resume.done",
		"migration-status-Running", "migration-status-Running.done",
	}
}

func TestAnAgentKilledAtAnyStepOfAMoveLeavesOneGuest(t *testing.T) {
	ofBothKinds(t, started, killedAtAnyStep)
}

func killedAtAnyStep(w world) {
	t := w.TB
	// Given agents with these failpoints, and a guest.
	binary := node.WithFailpoints(t)
	for _, h := range []*host{w.a, w.b} {
		h.agent.Path = binary
		h.restart(w)
	}
	v := w.guarded(node.Spec{GuestAgent: true})
	v.watchForTwo()
	source := w.some(sourcePoints(), []string{"migration-send.done", "migration-moved"})
	target := w.some(targetPoints(), []string{"migration-resume", "migration-resume.done"})
	moved := 0
	kill := func(side string, of func() (victim, to *host), point string) {
		victim, to := of()
		victim.restart(w, "VMGRACE_FAILPOINT="+point)
		// When the agent is killed at the point and started again,
		v.schedule(to, `"bandwidthMiB":200`)
		if _, ended := victim.agent.Exited(time.Minute); !ended {
			t.Errorf("the %s's agent does not pass %s", side, point)
		}
		victim.restart(w)
		// then the guest runs on one node, and both agents say on which.
		if v.decided() {
			moved++
		}
		t.Logf("the %s's agent killed at %s: %s, %s", side, point, v.phase(), v.whyFailed())
	}
	for _, point := range source {
		kill("source", func() (*host, *host) { return v.here.host, w.other(v.here.host) }, point)
	}
	for _, point := range target {
		kill("target", func() (*host, *host) { to := w.other(v.here.host); return to, to }, point)
	}
	t.Logf("of %d migrations %d moved the guest", len(source)+len(target), moved)
	v.ends()
}

// dying is something that dies while a guest is sent.
type dying struct {
	what string
	die  func(v *vm)
	then func(v *vm) // checks that the guest stays where it is
}

func TestWhateverDiesWhileAGuestIsSentLeavesOneGuest(t *testing.T) {
	ofBothKindsIfLong(t, started, whateverDiesWhileSent)
}

func whateverDiesWhileSent(w world) {
	t := w.TB
	v := w.guarded(node.Spec{GuestAgent: true})
	v.watchForTwo()
	fails := func(v *vm) {
		if v.decided() {
			t.Error("it was moved all the same")
		}
		t.Log(v.whyFailed())
	}
	cases := []dying{
		{"the source's agent", func(v *vm) { v.here.restart(v.w) }, fails},
		{"the target's agent", func(v *vm) { v.there.restart(v.w) }, fails},
		{"the target's QEMU", func(v *vm) { v.there.killQEMU(v.w, v.Domain) }, fails},
		// The controller asks for the abort in this case.
		{"the target's launcher", func(v *vm) {
			v.there.shim.Kill()
			v.patch(`{"migrationState":{"abortRequested":true,"failureReason":"the target's launcher has ended"}}`)
		}, fails},
		{"the migration, deleted", func(v *vm) { v.w.api.Kubectl(v.w, "delete", "vmim", v.migration, "--wait=false") }, (*vm).stayed},
	}
	if w.kind == (libvirts{}) {
		cases = append(cases, dying{"the source's libvirtd", func(v *vm) { v.here.RestartLibvirtd(v.w) }, fails},
			dying{"the target's libvirtd", func(v *vm) { v.there.RestartLibvirtd(v.w) }, fails})
	}
	if w.kind == (inPods{}) && !long() {
		cases = cases[:3]
	}
	for _, c := range cases {
		// Given a guest that is slowly sent.
		v.schedule(w.other(v.here.host), `"bandwidthMiB":8`)
		v.waitSent()
		// When this dies, then the guest runs on where it is,
		t.Log(c.what)
		c.die(v)
		c.then(v)
		// and a second migration moves the guest.
		v.schedule(w.other(v.here.host), `"bandwidthMiB":400`)
		if !v.decided() {
			t.Errorf("%s: the second try fails: %s", c.what, v.whyFailed())
		}
	}
	v.ends()
}

func (v *vm) whyFailed() string {
	return v.w.get("vmim", v.migration, "{.status.migrationState.failureReason}")
}

// stayed does what decided does, for a migration that was deleted.
func (v *vm) stayed() {
	w := v.w
	w.Helper()
	node.Eventually(w, soon, func() bool { return v.there.state(v.Domain) == "" && v.here.runs(v.Domain) }, "%s does not go on where it was, alone", v.Name)
	v.there.shim.Kill()
	w.api.Kubectl(w, "delete", "pod", v.there.pod, "--grace-period=0", "--force")
}

func (w world) other(h *host) *host {
	if h.name == w.a.name {
		return w.b
	}
	return w.a
}

// restart kills the agent if it lives and starts it again with env added to its
// environment.
func (h *host) restart(w world, env ...string) {
	w.Helper()
	h.agent.Env = env
	h.agent.Kill()
	said := h.agent.Said(certified)
	h.agent.Start(w)
	h.agent.WaitSaid(w, certified, said+1)
}

func (h *host) killQEMU(w world, domain string) {
	w.Helper()
	if err := h.signal(domain, 9); err != nil {
		w.Fatal(err)
	}
}

func TestAShutdownBeatsAMove(t *testing.T) { ofBothKinds(t, started, shutdownBeatsAMove) }

func shutdownBeatsAMove(w world) {
	t := w.TB
	for cause, end := range map[string]func(v *vm){
		"VMIDeleted":     func(v *vm) { w.api.Kubectl(w, "delete", "vmi", v.Name) },
		"LauncherSignal": func(v *vm) { v.SignalShim(w) },
	} {
		// Given a guest that is slowly sent.
		v := w.guarded(node.Spec{GuestAgent: true})
		v.watchForTwo()
		v.schedule(w.b, `"bandwidthMiB":8`)
		v.waitSent()
		// When its shutdown begins, then the guest is shut down where it is.
		end(v)
		if s := v.here.launcher.WaitStopped(w, 2*soon); s.Outcome != "Graceful" || s.Cause != cause { // its grace period
			t.Errorf("%s: status.json: %+v", cause, s)
		}
		if presses := v.Presses(); presses == 0 {
			t.Errorf("%s: the guest was not asked", cause)
		}
		node.Eventually(w, soon, func() bool { return v.there.state(v.Domain) == "" && v.here.state(v.Domain) == "" }, "%s: something is left of it", cause)
		node.Eventually(w, soon, func() bool { return v.states() == "Running/Absent" }, "%s: the agents do not say that it stayed", cause)
	}
}

// Given a guest whose VMI is deleted at a moment of its migration. Then it is asked to shut down
// once, where it is, and nothing is left of it on either node.
func TestAVMIDeletedAtAnyMomentOfAMoveEndsItsGuestOnce(t *testing.T) {
	ofBothKinds(t, linked, deletedAtAnyMoment)
}

func deletedAtAnyMoment(w world) {
	for _, at := range w.some([]string{scheduled, prepare, beingSent, finish, finished, performed}, []string{scheduled, finish, finished}) {
		v := w.guarded(node.Spec{GuestAgent: true})
		v.watchForTwo()
		v.struck(at, fault{what: "the VMI is deleted", do: func(string, *host, *host) error {
			_, err := w.api.TryKubectl(w.Context(), "", "delete", "vmi", v.Name, "--wait=false")
			return err
		}})
		places := []place{v.here, v.there}
		for _, p := range places { // as the garbage collector and kubelet do
			w.api.Kubectl(w, "delete", "pod", p.pod, "--wait=false")
			_ = p.shim.Signal(unix.SIGTERM) // it may have ended
		}
		node.Eventually(w, 2*soon, func() bool { return v.here.state(v.Domain) == "" && v.there.state(v.Domain) == "" }, "%s: something is left of it", at)
		var asked []node.Status
		node.Eventually(w, soon, func() bool {
			asked = nil
			for _, p := range places {
				if s := p.launcher.Status(); s.Phase == "Stopped" && s.Outcome == "Graceful" {
					asked = append(asked, s)
				}
			}
			return len(asked) > 0
		}, "%s: no launcher is told that it was shut down", at)
		if len(asked) != 1 {
			w.Errorf("%s: status.json: %+v", at, asked)
		}
		if n := v.Presses(); n != 1 {
			w.Errorf("%s: the guest was asked %d times", at, n)
		}
		w.Logf("%s: %s", at, v.states())
		v.patch(`{"phase":"Failed"}`)
		for _, p := range places {
			p.shim.Kill()
			w.api.Kubectl(w, "delete", "pod", p.pod, "--grace-period=0", "--force")
		}
	}
}
