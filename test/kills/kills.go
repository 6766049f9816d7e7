// Package kills tests an agent that is killed again and again. The agent guards twenty deaf
// guests in all phases and gets SIGKILL at random times. It must keep its promises: no
// guest is destroyed before its deadline, none has two deadlines, none is forgotten, and no
// other guest is touched.
package kills

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/test/node"
)

// guests is how many guests a wave has.
const guests = 20

// waitTimeout bounds the wait for the guests of one wave. It is longer than what the agent
// promises, because the agent is dead or starting for most of the time.
const waitTimeout = 2 * time.Minute

// Result is the result of a run.
type Result struct {
	Kills, VMs int
	// Violations describes the broken promises.
	Violations []string
}

func (r Result) String() string {
	return fmt.Sprintf("%d kills, %d VMs, %d violations", r.Kills, r.VMs, len(r.Violations))
}

type storm struct {
	Result
	t        node.T
	node     *node.Node
	agent    *node.Agent
	nextKill time.Time
	lives    []life
}

// life is the time in which one process of the agent lived.
type life struct{ from, to time.Time }

// Run kills an agent this many times. It goes on until the guests of the last wave have
// ended.
func Run(t node.T, n *node.Node, kills int) Result {
	t.Helper()
	s := &storm{t: t, node: n, agent: n.Agent(t, "--shutdown-retry-interval=1s").Start(t)}
	s.lives = []life{{from: time.Now()}}
	stranger := n.Boot(t, node.Spec{Namespace: "vmgrace-stranger", Firmware: true})
	resting := s.start(t)
	for s.Kills < kills {
		s.wave()
	}
	if stranger.Gone() || resting.Gone() {
		s.violation("a VM ended that nobody wanted to end")
	}
	return s.Result
}

func (s *storm) violation(format string, args ...any) {
	s.Violations = append(s.Violations, fmt.Sprintf(format, args...))
}

// wave starts guests and kills the agent again and again until all of them have ended.
func (s *storm) wave() {
	scope := &scope{T: s.t}
	defer scope.end()
	vms := map[string]*vm{}
	for range guests {
		v := s.start(scope)
		v.triggerAt = time.Now().Add(rand.N(6 * time.Second))
		vms[v.Domain] = v
		s.killWhenDue()
	}
	node.Eventually(s.t, waitTimeout, func() bool {
		s.killWhenDue()
		s.sample(vms)
		left := 0
		for _, v := range vms {
			if !v.over(s.t) {
				left++
			}
		}
		return left == 0
	}, "all guests end; killed %d times so far", s.Kills)
	s.lives[len(s.lives)-1].to = time.Now()
	for _, v := range vms {
		v.check(s)
	}
	s.VMs += guests
	s.lives = s.lives[len(s.lives)-1:]
}

// killWhenDue kills the agent if its time has come, starts it again and chooses the time of
// the next kill. Most lives end while the agent starts. Some are longer, so that the agent
// makes progress on a slow machine, too.
func (s *storm) killWhenDue() {
	if time.Now().Before(s.nextKill) {
		return
	}
	s.agent.Kill()
	s.Kills++
	now := time.Now()
	s.lives[len(s.lives)-1].to = now
	s.lives = append(s.lives, life{from: now})
	s.agent.Launch(s.t)
	life := 20*time.Millisecond + rand.N(180*time.Millisecond)
	if rand.N(8) == 0 {
		life += rand.N(time.Second)
	}
	s.nextKill = time.Now().Add(life)
}

// sample notes which VMs have a record on disk, and the deadlines of the records.
func (s *storm) sample(vms map[string]*vm) {
	loaded, err := gracecache.Read(s.agent.StateDir)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	for _, q := range loaded.Quarantined {
		s.violation("a record cannot be used: %s: %v", q.Name, q.Reason)
	}
	for _, v := range vms {
		v.recorded = false
	}
	for _, r := range loaded.Records {
		v := vms[r.Domain()]
		if v == nil {
			continue
		}
		v.recorded = true
		if r.ShuttingDown() {
			v.deadlines[r.Shutdown.Deadline] = true
		}
	}
}

// enough is how long an agent must live to send a due signal: it starts, reads the records
// and signals. The check demands nothing of an agent that lives for less.
const enough = 500 * time.Millisecond

// by returns when a SIGTERM that is due must have been sent: in the first life that was
// long enough. The lateness of the machine extends that time. by is zero if there was no
// such life.
func (s *storm) by(due time.Time) time.Time {
	for _, l := range s.lives {
		if l.to.Before(due) {
			continue
		}
		from := l.from
		if due.After(from) {
			from = due
		}
		if at := from.Add(enough + 2*s.node.Late(from, l.to)); at.Before(l.to) {
			return at
		}
	}
	return time.Time{}
}

// scope is a node.T whose cleanups run at the end of a wave.
type scope struct {
	node.T
	undo []func()
}

// Cleanup implements node.T.
func (s *scope) Cleanup(f func()) { s.undo = append(s.undo, f) }

func (s *scope) end() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
}
