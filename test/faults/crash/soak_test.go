package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// soakVMs is how many VMs run at once.
const soakVMs = 30

// soakFor returns how long the soak takes: VMGRACE_SOAK, a minute by default.
func soakFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("VMGRACE_SOAK")
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("VMGRACE_SOAK: %v", err)
	}
	return d
}

// soak has three agents. Nobody touches calm, so that its resources can be compared. The
// test kills shot again and again. The machine of off shuts down.
type soak struct {
	*testing.T
	node        *node.Node
	signals     *node.Signals
	calm, shot  *node.Agent
	off         *soakNode
	life        time.Duration  // the longest time until something happens to a VM
	ended       map[string]int // VMs by cause
	kills, held int
	killed      []time.Time // when shot was killed
	most        int         // VMs at once, at most
	late        time.Duration
}

// levels are the resources that the calm agent holds.
type levels struct{ rss, fds, goroutines float64 }

func (s *soak) levels() levels {
	m := s.calm.Metrics(s)
	return levels{m["process_resident_memory_bytes"], m["process_open_fds"], m["go_goroutines"]}
}

func TestSoakWithRandomCausesAndFaultsStaysFlat(t *testing.T) {
	took := soakFor(t)
	n := node.New(t)
	args := []string{"--shutdown-retry-interval=1s", "--destroy-timeout=1s"}
	s := &soak{T: t, node: n, signals: node.ListSignals(t), calm: n.Agent(t, args...), shot: n.Agent(t, args...).Start(t),
		off: newSoakNode(t, n, args...), life: min(took/3, time.Minute), ended: map[string]int{}}
	s.calm.Path = node.Shipped(t, "node-agent") // its memory is compared
	s.calm.Start(t)
	stranger := n.Boot(t, node.Spec{Namespace: "vmgrace-stranger", Firmware: true})
	resting := s.calm.VM(t, n.Boot(t, node.Spec{Namespace: "vmgrace-soak", Firmware: true}), "--grace-period=1")
	waitGuarded(t, resting)

	// The soak runs twice, and each time only the resting VM is left. So what the agent
	// holds then does not depend on how many VMs ran.
	s.run(time.Now().Add(took / 2))
	early := s.levels()
	s.run(time.Now().Add(took / 2))

	if stranger.Gone() || resting.Gone() {
		t.Error("a VM ended that nobody wanted to end")
	}
	s.flat(early)
	t.Logf("%v: up to %d VMs at once, ended by cause: %v; agent killed %d times, QEMUs held %d times, a machine shut down %d times; the calm agent's latest SIGTERM %v after its deadline",
		took, s.most, s.ended, s.kills, s.held, s.off.times, s.late)
}

// run keeps all places filled with VMs until end, then ends all VMs.
func (s *soak) run(end time.Time) {
	places := make([]*soakVM, soakVMs)
	fault := time.Now()
	for left := soakVMs; left > 0; {
		left = 0
		started := false // at most one in each round, so that no other VM waits long
		s.most = max(s.most, running(places))
		up := s.off.boot(s, places)
		for i, v := range places {
			over := time.Now().After(end)
			switch {
			case v == nil && !over && !started:
				places[i], started = s.start(up), true
			case v != nil && v.done():
				s.ended[v.cause]++
				v.scope.end()
				places[i] = nil
			case v != nil:
				left++
				if over {
					v.until = time.Time{}
				}
			}
			if v == nil && !over {
				left++
			}
		}
		if now := time.Now(); now.After(fault) {
			s.fault(places[rand.N(soakVMs)])
			if rand.N(2) == 0 {
				s.off.shutDown(s, places)
			}
			fault = now.Add(rand.N(2 * time.Second))
		}
		node.WaitUntil(s, time.Now().Add(10*ms))
	}
}

func running(places []*soakVM) (n int) {
	for _, v := range places {
		if v != nil {
			n++
		}
	}
	return n
}

// fault kills an agent, or stops a QEMU for a while.
func (s *soak) fault(v *soakVM) {
	if rand.N(3) == 0 {
		s.killed = append(s.killed, time.Now())
		s.shot.Kill()
		s.shot.Launch(s)
		s.kills++
		return
	}
	if v == nil || !v.resume.IsZero() || v.Gone() {
		return
	}
	v.Signal(s, syscall.SIGSTOP)
	v.resume = time.Now().Add(rand.N(2 * time.Second))
	s.held++
}

// flat compares what the agent holds at rest with what it held after the first half. It
// allows some growth, because Go keeps memory and threads for later use.
func (s *soak) flat(early levels) {
	s.Helper()
	var late levels
	flat := func() bool {
		late = s.levels()
		return late.rss <= early.rss*1.15+4<<20 && late.fds <= early.fds+2 && late.goroutines <= early.goroutines+2
	}
	if !node.Poll(s.Context(), soon, flat) { // the agent needs a moment to release what has ended
		s.Errorf("the agent grows: from %v to %v", early, late)
	}
	s.Logf("the calm agent holds at rest: %v, later %v", early, late)
}

func (l levels) String() string {
	return fmt.Sprintf("%.1f MiB, %.0f fds, %.0f goroutines", l.rss/(1<<20), l.fds, l.goroutines)
}
