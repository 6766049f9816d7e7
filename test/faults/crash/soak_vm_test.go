package crash

import (
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// soakVM is one VM of the soak, from its start to the last of its traces.
type soakVM struct {
	vm
	soak   *soak
	scope  *scope
	agent  *node.Agent
	grace  time.Duration
	until  time.Time // when something is to happen to it
	cause  string    // what happened, "" before
	caused time.Time
	resume time.Time // when its QEMU runs again, zero where it was not held
}

func (s *soak) start() *soakVM {
	v := &soakVM{soak: s, scope: newScope(s.T), agent: s.calm, grace: time.Duration(rand.N(4)) * time.Second}
	if rand.N(2) == 0 {
		v.agent = s.shot
	}
	g := s.node.Start(v.scope, node.Spec{Namespace: "vmgrace-soak", Firmware: true})
	v.vm = launch(v.scope, v.agent, g, v.grace)
	v.until = time.Now().Add(rand.N(s.life))
	return v
}

// done takes the VM a step further, and tells whether nothing is left of it.
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
			v.soak.Fatalf("%s ended although nobody wanted it to\n%s", v.Domain, v.agent.Log())
		case time.Now().After(v.until) && v.resume.IsZero() && v.isGuarded(v.soak.T, v.agent):
			v.happen()
		}
		return false
	}
	took := time.Since(v.caused) // before the look: this test may be starved itself
	if !v.Gone() || v.shim.Running() || v.launcher.Status().Phase != "Stopped" || v.launcher.Has("shutdown") {
		if took > v.grace+soon {
			v.soak.Fatalf("%s does not end %v after %s: %+v\n%s", v.Domain, took, v.cause, v.launcher.Status(), v.agent.Log())
		}
		return false
	}
	if _, there := recorded(v.soak.T, v.agent)[v.Domain]; there {
		return false
	}
	v.check()
	if err := os.RemoveAll(v.launcher.Dir); err != nil { // as kubelet does
		v.soak.Fatal(err)
	}
	return true
}

func (v *soakVM) happen() {
	causes := []struct {
		name string
		do   func()
	}{
		{"touch", func() { v.launcher.Touch(v.soak) }},
		{"shim SIGTERM", func() { v.send(v.soak.T, syscall.SIGTERM) }},
		{"shim SIGKILL", func() { v.send(v.soak.T, syscall.SIGKILL) }},
		{"virsh destroy", func() { v.Virsh(v.soak, "destroy") }},
		{"own end", func() { v.Signal(v.soak, syscall.SIGSEGV) }},
	}
	c := causes[rand.N(len(causes))]
	v.cause, v.caused = c.name, time.Now()
	c.do()
}

// check: not before the deadline, and reported as what it was.
func (v *soakVM) check() {
	s := v.launcher.Status()
	want := map[string]string{"touch": "LauncherSignal", "shim SIGTERM": "LauncherSignal", "shim SIGKILL": "LauncherDied"}[v.cause]
	if s.Cause != want || s.UID != v.UID {
		v.soak.Errorf("%s by %s: status.json says %+v", v.Domain, v.cause, s)
	}
	if sent, ok := v.Terminated(); ok && want == "LauncherSignal" && sent.At.Before(v.caused.Add(v.grace)) {
		v.soak.Errorf("%s by %s: SIGTERM %v before its deadline", v.Domain, v.cause, v.caused.Add(v.grace).Sub(sent.At))
	}
}
