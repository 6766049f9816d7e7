package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

// memoryNode is a node whose shutdown the test controls.
type memoryNode struct {
	mu     sync.Mutex
	tell   func(NodeState)
	state  NodeState
	letGo  []time.Time
	kept   grace.NodeShutdownTime
	fails  error
	hangs  chan struct{}
	slow   time.Duration // until its first word
	keptAt []grace.NodeShutdownTime
}

func (m *memoryNode) Watch(ctx context.Context, told func(NodeState)) {
	m.mu.Lock()
	m.tell = told
	state, slow := m.state, m.slow
	m.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return
	}
	told(state)
	<-ctx.Done()
}

func (m *memoryNode) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.letGo = append(m.letGo, time.Now())
}

func (m *memoryNode) keep(n grace.NodeShutdownTime) error {
	m.mu.Lock()
	hangs := m.hangs
	m.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keptAt = append(m.keptAt, n)
	if m.fails == nil {
		m.kept = n
	}
	return m.fails
}

func (m *memoryNode) is(s NodeState) {
	m.mu.Lock()
	m.state = s
	tell := m.tell
	m.mu.Unlock()
	tell(s)
	synctest.Wait()
}

func (m *memoryNode) shutsDown(delay time.Duration) {
	m.is(NodeState{Known: true, Held: true, ShuttingDown: true, Delay: delay})
}

func (m *memoryNode) keeps() grace.NodeShutdownTime {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept
}

// recalls is what the next agent knows.
func (m *memoryNode) recalls() grace.NodeShutdownTime {
	kept := m.keeps()
	kept.Kept = kept != (grace.NodeShutdownTime{})
	return kept
}

// wentDown returns how long after t the node was released, which must have happened once.
func (m *memoryNode) wentDown(t *testing.T, after time.Time) time.Duration {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.letGo) != 1 {
		t.Fatalf("the node was let go %d times", len(m.letGo))
	}
	return m.letGo[0].Sub(after)
}

func onNode(t *testing.T, test func(*rig, *memoryNode)) {
	t.Helper()
	inBubble(t, func(r *rig) {
		r.stop()
		r.node = &memoryNode{state: NodeState{Known: true, Held: true, Delay: time.Minute}}
		r.run()
		test(r, r.node)
	})
}

func TestANodeWithoutVMsGoesDownAtOnce(t *testing.T) {
	onNode(t, func(r *rig, m *memoryNode) {
		r.after(time.Second)
		at := time.Now()
		m.shutsDown(time.Minute)
		r.after(time.Second)
		if after := m.wentDown(t, at); after > 100*time.Millisecond {
			t.Errorf("went down after %v", after)
		}
	})
}

// Given a shutdown that an earlier agent has kept, when it was called off while no agent was there
// and logind says so late, then no VM is shut down, whether its kept end is still to come or not.
func TestAKeptShutdownIsNoCauseUntilLogindConfirmsIt(t *testing.T) {
	for name, left := range map[string]time.Duration{"its end is to come": time.Minute, "its end has passed": 0} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(r *rig, m *memoryNode) {
				r.guarded(fake.Guest{Name: domain, Presses: 1, ShutsDown: time.Second}, "20")
				r.stop()
				m.slow, m.kept = 3*time.Second, grace.NodeShutdownTime{Begin: r.Now() - 1, End: r.Now().Add(left)}
				r.run()
				r.after(time.Hour)
				if rec, there := r.cache.get(domain); !there || rec.ShuttingDown() {
					t.Errorf("there: %v, %+v", there, rec.Shutdown)
				}
				if m.keeps() != (grace.NodeShutdownTime{}) {
					t.Errorf("kept %+v", m.keeps())
				}
			})
		})
	}
}

// Given a shutdown that an earlier agent has kept, and a launcher that was killed meanwhile, when
// logind confirms it late, then the guest is asked, and the node's end is the kept one.
func TestAKeptShutdownExplainsWhyALauncherDied(t *testing.T) {
	onNode(t, func(r *rig, m *memoryNode) {
		r.guarded(fake.Guest{Name: domain, Presses: 1, ShutsDown: 2 * time.Second}, "60")
		r.stop()
		r.set(domain, func(v *watch.View) { v.Locked, v.Holder.PID = false, 0 })
		end := r.Now().Add(40 * time.Second)
		m.slow, m.state.ShuttingDown, m.kept = 3*time.Second, true, grace.NodeShutdownTime{Begin: r.Now() - 1, End: end}
		r.run()
		r.after(4 * time.Second)
		if rec, _ := r.cache.get(domain); rec.Shutdown.Cause != grace.NodeShutdown || rec.Shutdown.Deadline != end.Add(-10*time.Second) {
			t.Errorf("%+v", rec.Shutdown)
		}
		r.after(5 * time.Second)
		r.stoppedAs(domain, grace.NodeShutdown, grace.Graceful)
	})
}

// The announcement and the end of the launcher came while no agent was there.
func TestAnAgentThatStartsInTheMiddleAsksWhyALauncherDied(t *testing.T) {
	for _, c := range []struct {
		name  string
		slow  time.Duration // logind's answer
		down  bool
		cause grace.Cause
		asked bool
	}{
		{"the node shuts down", 300 * time.Millisecond, true, grace.NodeShutdown, true},
		{"it does not", 300 * time.Millisecond, false, grace.LauncherDied, false},
		{"nobody knows", time.Minute, false, grace.LauncherDied, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			onNode(t, func(r *rig, m *memoryNode) {
				r.guarded(fake.Guest{Name: domain, Presses: 1, ShutsDown: 2 * time.Second}, "20")
				r.stop()
				r.set(domain, func(v *watch.View) { v.Locked, v.Holder.PID = false, 0 })
				m.slow, m.state.ShuttingDown = c.slow, c.down
				at := r.Now()
				r.run()
				r.after(time.Second)
				if rec, there := r.cache.get(domain); there != c.asked || there && rec.Shutdown.Cause != c.cause {
					t.Errorf("after 1 s: %+v", rec.Shutdown)
				} else if there && rec.Shutdown.Deadline.Sub(at) < 20*time.Second {
					t.Errorf("it has %v", rec.Shutdown.Deadline.Sub(at))
				}
				r.after(5 * time.Second)
				if s := r.dir(domain).said(); s.Cause != c.cause || (s.Outcome == grace.Graceful) != c.asked {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestADiskThatRefusesOrHangsDelaysNoGuestForLong(t *testing.T) {
	onNode(t, func(r *rig, m *memoryNode) {
		r.guarded(fake.Guest{Name: domain, Presses: 1, ShutsDown: time.Second}, "30")
		m.fails, m.hangs = errors.New("no space left on device"), make(chan struct{})
		at := time.Now()
		m.shutsDown(time.Minute)
		r.after(2 * time.Second)
		asked := r.when(fake.OpAsk, domain)
		if len(asked) == 0 || r.start.Add(asked[0]).Sub(at) > time.Second {
			t.Errorf("asked at %v", asked)
		}
		close(m.hangs)
		r.after(time.Second)
		m.wentDown(t, at)
	})
}

func TestWhatAnEarlierAgentHeardOfIsDroppedWhereNobodyKnowsOfIt(t *testing.T) {
	onNode(t, func(r *rig, m *memoryNode) {
		r.stop()
		m.state, m.kept = NodeState{}, grace.NodeShutdownTime{Begin: r.Now(), End: r.Now().Add(10 * time.Second)}
		r.run()
		r.after(11 * time.Second)
		r.guarded(fake.Guest{Name: domain}, "30")
		r.after(time.Hour)
		if rec, _ := r.cache.get(domain); rec.ShuttingDown() {
			t.Errorf("a VM that was started after the node's end: %+v", rec.Shutdown)
		}
		if !slices.Contains(m.keptAt, grace.NodeShutdownTime{}) {
			t.Error("it is still on disk")
		}
	})
}

func TestADelayThatIsTooShortIsToldOfOnTheNode(t *testing.T) {
	inCluster(t, "300", func(r *rig, c *memoryCluster) {
		r.stop()
		r.node = &memoryNode{state: NodeState{Known: true, Held: true, Delay: time.Minute}}
		r.run()
		// Once, however often it is checked.
		r.after(10 * time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.events) != 1 || !c.events[0].OfNode || !c.events[0].Warning || c.events[0].Reason != "ShutdownDelayTooShort" ||
			!strings.Contains(c.events[0].Message, "1m0s") || !strings.Contains(c.events[0].Message, "5m10s") {
			t.Errorf("%+v", c.events)
		}
	})
}

// priorities runs a node with logind's delay and two VMs with 20 s each: ns_vm,
// which does not listen, and ns_high, whose pod is important and whose guest takes 10 s.
func priorities(t *testing.T, delay time.Duration, test func(*rig, *memoryNode)) {
	t.Helper()
	inCluster(t, "20", func(r *rig, c *memoryCluster) {
		r.stop()
		high := c.pods[0]
		high.UID, high.Priority = "pod-2", 100
		c.others = map[string][]grace.Pod{"high": {high}}
		r.pod("pod-2", uid)
		r.node = &memoryNode{state: NodeState{Known: true, Held: true, Delay: delay}}
		r.run()
		r.agent.ClusterChanged("ns", "high")
		r.hv.Start(fake.Guest{Name: "ns_high", Presses: 1, ShutsDown: 10 * time.Second})
		r.after(2 * time.Second)
		test(r, r.node)
	})
}

// systemd does not wait for the VMs, from the start or later.
func TestNoVMWaitsForItsTurnWhereTheNodeDoesNot(t *testing.T) {
	for name, waits := range map[string]bool{"from the start": false, "by and by": true} {
		t.Run(name, func(t *testing.T) {
			priorities(t, 2*time.Minute, func(r *rig, m *memoryNode) {
				at := time.Now()
				stops := NodeState{Known: true, Held: true, ShuttingDown: true, Delay: 2 * time.Minute, AtOnce: !waits}
				m.is(stops)
				if waits {
					r.after(5 * time.Second)
					at, stops.AtOnce = time.Now(), true
					m.is(stops)
				}
				r.after(time.Second)
				if asked := r.when(fake.OpAsk, "ns_high"); len(asked) == 0 || r.start.Add(asked[0]).Sub(at) > time.Second {
					t.Errorf("the important one is asked at %v", asked)
				}
				r.after(time.Minute)
			})
		})
	}
}

// kubelet signals the launcher of a VM whose turn is later: it is asked now.
func TestALauncherThatIsSignalledDoesNotWaitForItsTurn(t *testing.T) {
	priorities(t, 2*time.Minute, func(r *rig, m *memoryNode) {
		m.shutsDown(2 * time.Minute)
		r.after(2 * time.Second)
		at := time.Now()
		r.set("pod-2", func(v *watch.View) { v.Trigger, v.TriggerUID, v.TriggerID = true, uid, grace.TriggerID{Inode: 5} })
		r.agent.LauncherChanged("ns_high")
		r.agent.ClusterChanged("ns", "high")
		r.after(time.Second)
		if asked := r.when(fake.OpAsk, "ns_high"); len(asked) == 0 || r.start.Add(asked[0]).Sub(at) > time.Second {
			t.Errorf("it is asked at %v", asked)
		}
		r.after(time.Minute)
		r.stoppedAs("pod-2", grace.NodeShutdown, grace.Graceful)
	})
}

func TestADelayThatIsTooShortIsShownAndSaidOfEachLongerVM(t *testing.T) {
	onNode(t, func(r *rig, _ *memoryNode) {
		text := r.logging()
		for n, seconds := range []string{"300", "60", "400"} {
			r.guarded(fake.Guest{Name: fmt.Sprint("ns_vm-", n)}, seconds)
			r.after(5 * time.Minute)
		}
		if v := r.agent.Node(); !v.Known || v.Delay != time.Minute || v.Needed != 410*time.Second {
			t.Errorf("%+v", v)
		}
		if n := strings.Count(text.String(), "a reboot of this node would cut grace periods short"); n != 2 {
			t.Errorf("said %d times: %s", n, text)
		}
	})
}
