package drain

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// scenario is a plan with the facts that the test changes.
type scenario struct {
	*testing.T

	plan    *Plan
	facts   Facts
	evicted []string
}

func begin(t *testing.T, pods ...Pod) *scenario {
	t.Helper()
	s := &scenario{T: t, plan: NewPlan(Limits{Reattach: ReattachTimeout}), facts: Facts{
		Now: time.Unix(0, 0), Pods: map[string]PodFacts{}, Claims: map[string]int{}, Here: map[string]bool{}, Elsewhere: map[string]bool{},
	}}
	for i := range pods {
		p := &pods[i]
		p.Name = p.UID
		s.plan.Add(p)
		s.facts.Pods[p.UID] = PodFacts{Ended: p.Ended}
		for _, v := range p.Volumes {
			s.facts.Claims[v.Claim]++
			s.facts.Here[v.Name] = true
		}
	}
	return s
}

func (s *scenario) after(d time.Duration) *scenario {
	s.facts.Now = s.facts.Now.Add(d)
	evict, _ := s.plan.Next(&s.facts)
	s.evicted = nil
	for _, p := range evict {
		s.evicted = append(s.evicted, p.UID)
	}
	return s
}

func (s *scenario) wantEvicted(want string) {
	s.Helper()
	if got := strings.Join(s.evicted, " "); got != want {
		s.Errorf("at %v: evicts %q, want %q; %s", s.facts.Now.Unix(), got, want, s.states())
	}
}

func (s *scenario) answer(uid string, v Verdict) {
	s.plan.Answer(uid, Answer{Verdict: v, Reason: "because"}, s.facts.Now)
}

func (s *scenario) gone(p *Pod) {
	delete(s.facts.Pods, p.UID)
	for _, v := range p.Volumes {
		s.facts.Claims[v.Claim]--
	}
}

func (s *scenario) states() string {
	var all []string
	for _, x := range s.plan.Status() {
		all = append(all, fmt.Sprintf("%s=%s", x.Pod.Name, x.State))
	}
	return strings.Join(all, " ")
}

func (s *scenario) wantStates(want string) {
	s.Helper()
	if got := s.states(); got != want {
		s.Errorf("at %v: %s, want %s", s.facts.Now.Unix(), got, want)
	}
}

func withVolume(uid string, priority int32) Pod {
	return Pod{UID: uid, Controller: "c", Priority: priority, Grace: 30 * time.Second, Volumes: []Volume{{Claim: "ns/" + uid, Name: "pv-" + uid}}}
}

func TestPodsWithVolumesGoOneAfterTheOtherByPriority(t *testing.T) {
	low, high := withVolume("low", 0), withVolume("high", 10)
	s := begin(t, low, high, Pod{UID: "plain", Controller: "c"})
	s.after(0).wantEvicted("high plain")
	s.answer("high", Accepted)
	s.answer("plain", Accepted)
	s.after(time.Second).wantEvicted("")
	s.gone(&high)
	s.after(time.Second).wantStates("high=Detaching low=Waiting plain=Terminating")
	delete(s.facts.Here, "pv-high")
	s.after(time.Second).wantStates("high=Reattaching low=Waiting plain=Terminating")
	s.wantEvicted("")
	s.facts.Elsewhere["pv-high"] = true
	s.after(time.Second).wantEvicted("low")
	s.wantStates("high=Drained low=Evicting plain=Terminating")
}

func TestVolumesThatAreNotWaitedFor(t *testing.T) {
	for name, change := range map[string]func(*scenario){
		"never attached":      func(s *scenario) { s.facts.Here, s.plan.all[0].attached = map[string]bool{}, map[string]bool{} },
		"shared with a pod":   func(s *scenario) { s.facts.Claims["ns/a"] = 2 },
		"attached there":      func(s *scenario) { delete(s.facts.Here, "pv-a"); s.facts.Elsewhere["pv-a"] = true },
		"goes with its pod":   func(s *scenario) { delete(s.facts.Here, "pv-a"); s.plan.all[0].pod.Volumes[0].Ephemeral = true },
		"nobody makes it new": func(s *scenario) { delete(s.facts.Here, "pv-a"); s.plan.all[0].pod.Controller = "" },
	} {
		t.Run(name, func(t *testing.T) {
			p := withVolume("a", 0)
			s := begin(t, p)
			if name == "never attached" {
				s.facts.Here = map[string]bool{}
			}
			s.after(0).wantEvicted("a")
			s.answer("a", Accepted)
			change(s)
			s.gone(&p)
			s.after(time.Second).wantStates("a=Drained")
		})
	}
}

func TestABoundForEachWait(t *testing.T) {
	p := withVolume("a", 0)
	t.Run("the pod stays", func(t *testing.T) {
		s := begin(t, p, withVolume("b", -1))
		s.after(0).wantEvicted("a")
		s.answer("a", Accepted)
		s.after(30*time.Second + DetachTimeout - time.Second).wantStates("a=Terminating b=Waiting")
		s.after(time.Second).wantStates("a=Failed b=Evicting")
	})
	t.Run("the volume stays", func(t *testing.T) {
		s := begin(t, p, withVolume("b", -1))
		s.after(0).wantEvicted("a")
		s.answer("a", Accepted)
		s.gone(&p)
		s.after(time.Minute).wantStates("a=Detaching b=Waiting")
		s.after(DetachTimeout).wantStates("a=Failed b=Evicting")
		if left := s.plan.Left(); len(left) != 2 || left[0].Reason != "still attached to this node: ns/a" {
			t.Errorf("%+v", left)
		}
	})
	t.Run("it is not attached elsewhere", func(t *testing.T) {
		s := begin(t, p)
		s.after(0).wantEvicted("a")
		s.answer("a", Accepted)
		s.gone(&p)
		delete(s.facts.Here, "pv-a")
		s.after(time.Second).wantStates("a=Reattaching")
		s.after(ReattachTimeout - time.Second).wantStates("a=Reattaching")
		s.after(time.Second).wantStates("a=Drained")
		if w := s.plan.Status()[0].Warning; !strings.Contains(w, "ns/a") || !strings.Contains(w, "1m30s") {
			t.Errorf("warning %q", w)
		}
	})
}

func TestARefusedPodLeavesTheLine(t *testing.T) {
	a, b := withVolume("a", 1), withVolume("b", 0)
	s := begin(t, a, b)
	s.after(0).wantEvicted("a")
	s.answer("a", Moving)
	s.after(0).wantEvicted("b")
	s.after(minRetryDelay).wantEvicted("a")
	s.answer("a", Moving)
	s.after(minRetryDelay).wantEvicted("") // twice as long now
	s.answer("b", Accepted)
	s.gone(&a) // its VM has moved
	s.after(0).wantStates("a=Detaching b=Terminating")
	delete(s.facts.Here, "pv-a")
	s.facts.Elsewhere["pv-a"] = true
	s.after(0).wantStates("a=Drained b=Terminating")
}

func TestWhatMayChangeTheAnswerHasItAskedAtOnce(t *testing.T) {
	for name, c := range map[string]struct{ before, now PodFacts }{
		"the budget has room":  {PodFacts{}, PodFacts{BudgetFree: true}},
		"the pod has ended":    {PodFacts{}, PodFacts{Ended: true}},
		"it is judged":         {PodFacts{VM: &VM{}}, PodFacts{VM: &VM{Judged: true}}},
		"the mark was removed": {PodFacts{VM: &VM{Marked: true}}, PodFacts{VM: &VM{}}},
		"the VM has moved":     {PodFacts{VM: &VM{Marked: true}}, PodFacts{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, Pod{UID: "a", Launcher: true})
			s.facts.Pods["a"] = c.before
			s.after(0).wantEvicted("a")
			s.answer("a", Moving)
			s.after(0).wantEvicted("")
			s.facts.Pods["a"] = c.now
			s.after(0).wantEvicted("a")
			s.answer("a", Blocked)
			s.after(0).wantEvicted("") // once: a stale cache causes no loop
		})
	}
}

func TestErrorsAreRetriedAndKeepTheLineOnlyForAWhile(t *testing.T) {
	s := begin(t, withVolume("a", 1), withVolume("b", 0))
	for range maxErrorsInQueue {
		s.after(maxErrorDelay).wantEvicted("a")
		s.answer("a", Retry)
		if _, again := s.plan.Next(&s.facts); again.IsZero() || again.Sub(s.facts.Now) > maxErrorDelay {
			t.Errorf("asked again at %v", again)
		}
	}
	if got := s.states(); !strings.HasPrefix(got, "a=Blocked") {
		t.Error(got)
	}
}

func TestAPodThatEndsByItselfIsFollowedByItsVolumes(t *testing.T) {
	p := withVolume("a", 0)
	p.Policy = WaitCompleted
	s := begin(t, p)
	s.after(time.Hour).wantEvicted("")
	s.wantStates("a=Completing")
	s.facts.Pods["a"] = PodFacts{Ended: true}
	s.facts.Claims["ns/a"] = 0
	s.after(time.Second).wantStates("a=Detaching")
	delete(s.facts.Here, "pv-a")
	s.after(time.Second).wantStates("a=Drained")
}

func TestAVMThatCannotBeMovedAfterAllIsNamed(t *testing.T) {
	s := begin(t, Pod{UID: "a", Launcher: true})
	s.after(0).wantEvicted("a")
	s.answer("a", Moving)
	s.facts.Pods["a"] = PodFacts{VM: &VM{Name: "ns/vm", Marked: true, Stuck: "host device"}}
	s.after(0).wantStates("a=Failed")
	if left := s.plan.Left(); !s.plan.Done() || len(left) != 1 || !strings.Contains(left[0].Reason, "ns/vm cannot be moved: host device") {
		t.Errorf("%+v", left)
	}
}

func TestANodeThatIsGoneIsDone(t *testing.T) {
	s := begin(t, withVolume("a", 1), withVolume("b", 0))
	s.after(0).wantEvicted("a")
	s.facts.NodeGone = true
	s.after(0).wantEvicted("")
	if !s.plan.Done() || len(s.plan.Left()) != 0 || !s.plan.NodeGone() {
		t.Error(s.states())
	}
}

func TestOnlyVolumesThatAreAttachedMakeALine(t *testing.T) {
	s := begin(t, withVolume("a", 1), withVolume("b", 0), withVolume("c", -1))
	delete(s.facts.Here, "pv-a") // NFS, or a driver that attaches nothing
	s.after(0).wantEvicted("a b")
	s.wantStates("a=Evicting b=Evicting c=Waiting")
}

// The pod ends between the list of pods and the first call of Next.
func TestAPodThatEndsAtTheVeryBeginningIsFollowedByItsVolumes(t *testing.T) {
	p := withVolume("a", 0)
	s := begin(t, p)
	s.gone(&p)
	s.after(0).wantStates("a=Detaching")
	delete(s.facts.Here, "pv-a")
	s.facts.Elsewhere["pv-a"] = true
	s.after(0).wantStates("a=Drained")
}

// Its grace period may be longer: --grace-period=0 ends a pod that hangs while it
// terminates.
func TestAPodThatTerminatesIsAskedForOnlyWithAGracePeriod(t *testing.T) {
	for overrides, want := range map[bool]string{false: "", true: "a"} {
		s := begin(t, Pod{UID: "a", Controller: "c", OverridesGrace: overrides})
		s.facts.Pods["a"] = PodFacts{Deleting: true}
		s.after(0).wantEvicted(want)
		s.answer("a", Accepted)
		s.after(time.Minute).wantEvicted("")
		s.wantStates("a=Terminating")
	}
}
