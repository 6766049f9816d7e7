// Package kills is a storm: one agent guards twenty deaf guests in all phases
// and is killed again and again, with SIGKILL, at random times. Nothing it
// promised may break: no guest is destroyed before its deadline, none has two
// deadlines, none is forgotten, and nobody else is touched.
package kills

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/test/node"
)

// guests is how many there are at once.
const guests = 20

// waitTimeout is how long the guests of one wave may take, beyond what the agent
// promises: it is dead or starting for most of the time.
const waitTimeout = 2 * time.Minute

// Result is what a storm brought.
type Result struct {
	Kills, VMs int
	// Violations are broken promises, in words.
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

// life is how long one agent lived.
type life struct{ from, to time.Time }

// Run kills an agent so often, and longer where guests are left that have to end.
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

// wave starts guests and kills the agent until all of them have ended.
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

// killWhenDue ends the agent, and says when the next one is to die: mostly while it
// starts, now and then when it has lived for a while. It must be able to get
// somewhere on a slow machine too.
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

// sample notes every deadline that is on disk.
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

// enough is how long an agent has to live to send what is due: it starts, reads
// the records and signals. One that lives for less owes nothing.
const enough = 500 * time.Millisecond

// by is when a SIGTERM that is due has to have been sent: in the first life that
// was long enough, longer by what the machine was late. Zero: there was none yet.
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

// scope is a test that ends with a wave.
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
