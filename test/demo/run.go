package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// part describes one of the three guests, and how it should end.
type part struct {
	name, guest string
	behaviour   string
	grace       time.Duration
	want        string
}

// The agent is killed after the second guest's deadline and before the third guest's.
const (
	killAfter = 7500 * time.Millisecond
	deadFor   = 1500 * time.Millisecond
)

func cast() []part {
	return []part{
		{name: "polite", guest: "powers off when asked", grace: 30 * time.Second, want: "Graceful"},
		{name: "deaf", guest: "ignores every request", behaviour: "deaf", grace: 6 * time.Second, want: "Forced"},
		{name: "orphan", guest: "deaf, and its agent is killed", behaviour: "deaf", grace: 12 * time.Second, want: "Forced"},
	}
}

// actor is the VM of a part, with what has been seen of it.
type actor struct {
	part
	*node.VM
	deadline string // as the agent first stated it
	phase    string // as last reported
	presses  int    // as last reported
	asked    time.Time
	gone     time.Time
}

// run runs the demo and reports whether all three guests ended as they should.
func run(ctx context.Context, out screen) bool {
	s := &stage{ctx: ctx, out: out}
	var results []result
	err := s.play(func() {
		agent, actors := prepare(s)
		perform(s, agent, actors)
		for _, a := range actors {
			results = append(results, judge(a))
		}
		if _, ok := table(results); !ok {
			s.Logf("node-agent said:\n%s", agent.Log())
		}
	})
	if err != nil {
		out.end("demo: " + err.Error() + "\n")
		return false
	}
	text, ok := table(results)
	if !ok {
		text += "demo: not all three ended as they should\n"
	}
	out.end(text)
	return ok
}

// prepare starts the node, the agent, the guests and the shims.
func prepare(s *stage) (*node.Agent, []*actor) {
	s.out.say("", "starting a libvirtd of the demo's own; the machine's libvirt is not touched")
	n := node.New(s)
	agent := n.Agent(s, "--shutdown-retry-interval=2s").Start(s)
	s.out.say("", "booting three Linux guests in QEMU, emulated")
	parts := cast()
	guests := make([]*node.Guest, 0, len(parts))
	for _, p := range parts {
		guests = append(guests, n.Start(s, node.Spec{Namespace: "demo", Name: p.name, Behaviour: p.behaviour}))
	}
	actors := make([]*actor, 0, len(parts))
	for i, g := range guests {
		g.WaitUp(s)
		actors = append(actors, &actor{part: parts[i], VM: agent.VM(s, g, "--grace-period="+parts[i].grace.String())})
	}
	for _, a := range actors {
		a.WaitGuarded(s)
	}
	return agent, actors
}

// perform sends SIGTERM to the three shims, kills and restarts the agent in the last
// guest's grace period, and shows everything until all guests are gone.
func perform(s *stage, agent *node.Agent, actors []*actor) {
	s.out.say("", "the launchers of all three get SIGTERM, as kubelet sends it when a pod is deleted")
	begin := time.Now()
	for _, a := range actors {
		a.asked = a.SignalShim(s)
	}
	orphan := actors[len(actors)-1]
	killed, back := false, false
	node.Eventually(s, time.Minute, func() bool {
		switch {
		case !killed && time.Since(begin) > killAfter:
			agent.Kill()
			killed = true
			s.out.say(orphan.name, "the agent was killed with SIGKILL")
		case killed && !back && time.Since(begin) > killAfter+deadFor:
			agent.Launch(s)
			back = true
			s.out.say(orphan.name, "the agent was started again")
		}
		return watch(s.out, actors)
	}, "all three guests have ended")
	for _, a := range actors {
		a.Launcher.WaitStopped(s, 10*time.Second)
	}
	watch(s.out, actors)
}

// watch looks at the guests once, shows what is new, and reports whether all are gone.
func watch(out screen, actors []*actor) (allGone bool) {
	allGone = true
	rows := make([]row, 0, len(actors))
	for _, a := range actors {
		status := a.Launcher.Status()
		a.look(out, status)
		r := row{vm: a.name, guest: a.guest, grace: a.grace, phase: status.Phase}
		if deadline, err := time.Parse(time.RFC3339, status.Deadline); err == nil && a.gone.IsZero() {
			r.left, r.counting = time.Until(deadline), true
		}
		rows = append(rows, r)
		allGone = allGone && !a.gone.IsZero()
	}
	out.show(rows)
	return allGone
}

// look notes and shows what has changed for one guest.
func (a *actor) look(out screen, status node.Status) {
	if a.gone.IsZero() && a.Gone() {
		a.gone = time.Now()
		out.say(a.name, fmt.Sprintf("its QEMU is gone, %.2f s after SIGTERM", a.gone.Sub(a.asked).Seconds()))
	}
	if a.deadline == "" && status.Deadline != "" {
		a.deadline = status.Deadline
		out.say(a.name, fmt.Sprintf("grace period %v, deadline %s", a.grace, a.deadline))
	}
	if n := a.Presses(); n > a.presses {
		a.presses = n
		out.say(a.name, fmt.Sprintf("the guest notices request %d", n))
	}
	if status.Phase != a.phase {
		a.phase = status.Phase
		if status.Outcome != "" {
			out.say(a.name, "outcome "+status.Outcome)
		}
	}
}
