package crash

import (
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// soakVM is one VM of the soak, from its start to the last of its traces.
type soakVM struct {
	*node.VM
	soak   *soak
	scope  *scope
	grace  time.Duration
	until  time.Time // when something happens to it
	cause  string    // what happened, "" before that
	caused time.Time
	resume time.Time // when its QEMU continues, zero if it is not stopped
}

// start starts a VM. up says that the machine that shuts down can take one now.
func (s *soak) start(up bool) *soakVM {
	v := &soakVM{soak: s, scope: newScope(s.T), grace: time.Duration(rand.N(4)) * time.Second}
	agents := []*node.Agent{s.calm, s.calm, s.shot, s.shot}
	if up {
		agents = append(agents, s.off.Agent)
	}
	agent := agents[rand.N(len(agents))]
	v.VM = agent.VM(v.scope, s.node.Start(v.scope, node.Spec{Namespace: "vmgrace-soak", Firmware: true}), "--grace-period="+v.grace.String())
	v.until = time.Now().Add(rand.N(s.life))
	return v
}

// done takes the VM one step further, and reports whether nothing is left of it.
func (v *soakVM) done() bool {
	if !v.resume.IsZero() && time.Now().After(v.resume) {
		v.resume = time.Time{}
		if !v.Gone() {
			v.Signal(v.soak, syscall.SIGCONT)
		}
	}
	if v.cause == "" {
		switch {
		case v.Gone():
			v.soak.Fatalf("%s ended although nobody wanted it to\n%s", v.Domain, v.Agent.Log())
		case time.Now().After(v.until) && v.resume.IsZero() && guarded(v.soak.T, v.VM):
			v.happen()
		}
		return false
	}
	took := time.Since(v.caused) // taken before the checks: this test may not get a core itself
	if !v.Gone() || v.Shim.Running() || v.Launcher.Status().Phase != "Stopped" || v.Launcher.Has("shutdown") {
		if took > v.grace+soon {
			v.soak.Fatalf("%s does not end %v after %s: %+v\n%s", v.Domain, took, v.cause, v.Launcher.Status(), v.Agent.Log())
		}
		return false
	}
	if _, there := recorded(v.soak.T, v.Agent)[v.Domain]; there {
		return false
	}
	v.check()
	if err := os.RemoveAll(v.Launcher.Dir); err != nil { // as kubelet does
		v.soak.Fatal(err)
	}
	return true
}

func (v *soakVM) happen() {
	causes := []struct {
		name string
		do   func()
	}{
		{"touch", func() { v.Launcher.Touch(v.soak) }},
		{"shim SIGTERM", func() { v.SignalShim(v.soak) }},
		{"shim SIGKILL", func() { v.Shim.Kill() }},
		{"virsh destroy", func() { v.Virsh(v.soak, "destroy") }},
		{"own end", func() { v.Signal(v.soak, syscall.SIGSEGV) }},
	}
	c := causes[rand.N(len(causes))]
	v.cause, v.caused = c.name, time.Now()
	c.do()
}

// check checks that status.json states the right cause, and that SIGTERM was not sent
// before the deadline. For the agent that nobody kills, it also checks that SIGTERM was
// sent on time.
func (v *soakVM) check() {
	s, sent := v.Launcher.Status(), v.sent()
	want := map[string]string{"touch": "LauncherSignal", "shim SIGTERM": "LauncherSignal", "shim SIGKILL": "LauncherDied", "node shutdown": "NodeShutdown"}[v.cause]
	if told := s.Cause == want || s.Cause == "" && v.unnoted(sent); !told || s.UID != v.UID {
		v.soak.Errorf("%s by %s: status.json says %+v", v.Domain, v.cause, s)
	}
	if want == "" || s.Cause == "" || sent.IsZero() {
		return
	}
	if want != "LauncherDied" && sent.Before(v.caused.Add(v.grace)) {
		v.soak.Errorf("%s by %s: SIGTERM %v before its deadline", v.Domain, v.cause, v.caused.Add(v.grace).Sub(sent))
	}
	if v.Agent != v.soak.calm {
		return
	}
	deadline := node.WallTime(v.soak, s.Deadline)
	took, machine := sent.Sub(deadline), v.soak.node.Late(deadline, sent)
	if want == "LauncherDied" || v.grace == 0 {
		machine *= 3 // three have to be woken, not one: keeper, disk, keeper
	}
	if took > late+machine {
		v.soak.Errorf("%s by %s: SIGTERM %v after its deadline; the machine is %v late", v.Domain, v.cause, took, machine)
	}
	v.soak.late = max(v.soak.late, took)
}

// sent returns when the first SIGTERM was sent to QEMU, zero if none was.
func (v *soakVM) sent() time.Time {
	at, ok := v.soak.signals.Sent(v.soak, v.Guest, syscall.SIGTERM)
	if !ok {
		return time.Time{}
	}
	return node.Moment(v.soak, at)
}

// unnoted reports whether the agent may have ended QEMU without a record of it. A deadline
// that is due at once waits only 20 ms for its record. If the agent is killed while a slow
// disk still writes the record, the next agent does not know what its predecessor has done.
func (v *soakVM) unnoted(sent time.Time) bool {
	const wait = 20 * ms
	if v.cause != "shim SIGKILL" && v.grace > 0 || v.Agent != v.soak.shot || sent.Sub(v.caused) < wait {
		return false
	}
	return slices.ContainsFunc(v.soak.killed, func(at time.Time) bool { return at.After(v.caused) && at.Before(sent.Add(time.Second)) })
}
