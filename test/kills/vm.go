package kills

import (
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/node"
)

// vm is a deaf guest with its launcher.
type vm struct {
	*node.VM
	grace     time.Duration
	triggerAt time.Time // when the test signals its shim; zero = never
	triggered time.Time // when the test signalled it

	recorded  bool // it has a record now
	deadlines map[grace.Mono]bool
	told      map[string]bool // deadlines in status.json
}

func (s *storm) start(t node.T) *vm {
	v := &vm{grace: time.Duration(1+rand.N(5)) * time.Second, deadlines: map[grace.Mono]bool{}, told: map[string]bool{}}
	v.VM = s.agent.VM(t, s.node.Start(t, node.Spec{Namespace: "vmgrace-kills", Firmware: true}), "--grace-period="+v.grace.String())
	v.WaitRegistered(t)
	return v
}

// over signals the VM when that is due, notes its deadline, and tells whether nothing is
// left of it.
func (v *vm) over(t node.T) bool {
	if v.triggered.IsZero() {
		if time.Now().After(v.triggerAt) {
			v.triggered = v.SignalShim(t)
		}
		return false
	}
	status := v.Launcher.Status()
	if status.Deadline != "" {
		v.told[status.Deadline] = true
	}
	return !v.recorded && status.Phase == "Stopped" && v.Gone() && !v.Launcher.Has("shutdown") && !v.Shim.Running()
}

func (v *vm) check(s *storm) {
	status := v.Launcher.Status()
	deadline, err := time.Parse(time.RFC3339Nano, status.Deadline)
	sent, ok := v.Sent(s.t, unix.SIGTERM)
	switch {
	case err != nil || !ok:
		s.violation("%s was not ended by a SIGTERM: status.json %+v", v.Domain, status)
	case len(v.deadlines) > 1 || len(v.told) > 1:
		s.violation("%s had several deadlines: on disk %v, in status.json %v", v.Domain, v.deadlines, v.told)
	case sent.Before(deadline), sent.Before(v.triggered.Add(v.grace)):
		s.violation("%s: SIGTERM at %v, deadline %v, signalled at %v with %v", v.Domain, sent, deadline, v.triggered, v.grace)
	case status.Outcome != "Forced" || status.Cause != "LauncherSignal":
		s.violation("%s: status.json says %+v", v.Domain, status)
	}
	if by := s.by(deadline); err == nil && !by.IsZero() && sent.After(by) {
		s.violation("%s: SIGTERM %v after the deadline, %v later than the agent that lived long enough had to send it", v.Domain, sent.Sub(deadline), sent.Sub(by))
	}
	if err := os.RemoveAll(v.Launcher.Dir); err != nil { // as kubelet does
		s.t.Fatalf("%v", err)
	}
}
