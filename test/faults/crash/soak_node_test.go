package crash

import (
	"time"

	"github.com/vmgrace/vmgrace/test/logind"
	"github.com/vmgrace/vmgrace/test/node"
)

// soakNode is an agent whose machine shuts down and boots again and again.
type soakNode struct {
	*node.Agent
	machine *logind.Machine
	down    bool // from the announcement until the machine has booted
	times   int
}

func newSoakNode(t node.T, n *node.Node, args ...string) *soakNode {
	m := logind.Start(t, time.Minute)
	return &soakNode{Agent: n.Agent(t, append(args, "--dbus-socket="+m.Socket)...).Start(t), machine: m}
}

// shutDown powers the machine off if its agent guards, and so ends, all VMs there.
func (s *soakNode) shutDown(t *soak, places []*soakVM) {
	var here []*soakVM
	for _, p := range places {
		switch {
		case p == nil || p.Agent != s.Agent || p.cause != "":
		case p.Gone() || !p.resume.IsZero() || !guarded(t.T, p.VM):
			return
		default:
			here = append(here, p)
		}
	}
	if s.down || len(here) == 0 || s.Metrics(t)["vmgrace_node_shutdown_delayed"] != 1 {
		return
	}
	at := s.machine.Shutdown(t, "PowerOff")
	s.down, s.times = true, s.times+1
	for _, p := range here {
		p.cause, p.caused = "node shutdown", at
	}
}

// boot starts the machine again once it is down, and reports whether it is up.
func (s *soakNode) boot(t *soak, places []*soakVM) bool {
	if !s.down {
		return true
	}
	_, at, down := s.machine.Down(t)
	for _, p := range places {
		if p != nil && p.Agent == s.Agent {
			if down && p.cause == "node shutdown" && !p.Gone() {
				t.Errorf("the machine went down at %v although %s still ran", at, p.Domain)
			}
			return false
		}
	}
	if down {
		s.machine.Boot(t)
		s.down = false
	}
	return !s.down
}
