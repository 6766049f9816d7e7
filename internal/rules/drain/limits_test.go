package drain

import (
	"strings"
	"testing"
	"time"
)

// Nothing that happens to a pod without volumes delays the others, or the end.
func TestAPodWithoutVolumesHasABoundToo(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		bound  time.Duration
	}{
		"its grace and 2 minutes": {Limits{}, 30*time.Second + DetachTimeout},
		"--pod-timeout":           {Limits{Pod: 5 * time.Second}, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, Pod{UID: "a", Controller: "c", Grace: 30 * time.Second}, Pod{UID: "b", Controller: "c", Grace: time.Hour})
			s.plan.limits = c.limits
			s.after(0).wantEvicted("a b")
			s.answer("a", Accepted)
			s.answer("b", Blocked)
			s.after(c.bound - time.Millisecond)
			if _, again := s.plan.Next(&s.facts); again.Sub(s.facts.Now) > time.Millisecond {
				t.Errorf("asked again at %v", again)
			}
			s.after(time.Millisecond)
			if got := s.plan.Status()[0]; got.State != StateFailed || !strings.Contains(got.Reason, "it still terminates after "+c.bound.String()) {
				t.Errorf("%+v", got)
			}
			s.answer("b", Accepted) // its second eviction
			delete(s.facts.Pods, "b")
			s.after(time.Second).wantStates("a=Failed b=Drained")
		})
	}
}

func TestADeletedPodKeepsTheGraceOfItsDeletion(t *testing.T) {
	kill := time.Unix(0, 0).Add(time.Hour)
	s := begin(t, Pod{UID: "a", Controller: "c", Grace: 30 * time.Second})
	s.facts.Pods["a"] = PodFacts{Deleting: true, KillAt: kill}
	s.after(0).wantStates("a=Terminating")
	s.after(time.Hour + DetachTimeout - time.Second).wantStates("a=Terminating")
	s.after(time.Second).wantStates("a=Failed")
}

func TestDeleteAfterRefusedEvictions(t *testing.T) {
	refused := func(v Verdict) Answer { return Answer{Verdict: v, Reason: "waits for a budget", ByBudget: true} }
	for name, c := range map[string]struct {
		after   int
		pod     Pod
		answer  Answer
		deletes bool
		state   State // after three answers, if it is not deleted
	}{
		"blocked":             {3, Pod{}, refused(Blocked), true, ""},
		"a budget for ever":   {3, Pod{}, refused(Failed), true, ""},
		"off":                 {0, Pod{}, refused(Blocked), false, StateBlocked},
		"off, for ever":       {0, Pod{}, refused(Failed), false, StateFailed},
		"a launcher":          {3, Pod{Launcher: true}, refused(Blocked), false, StateBlocked},
		"a launcher for ever": {3, Pod{Launcher: true}, refused(Failed), false, StateFailed},
		"a disk of a VM":      {3, Pod{Hotplug: true}, refused(Blocked), false, StateBlocked},
		"anything of a VM":    {3, Pod{OfVM: true}, refused(Blocked), false, StateBlocked},
		"another refusal":     {3, Pod{}, Answer{Verdict: Blocked, Reason: "a webhook"}, false, StateBlocked},
		"an error":            {3, Pod{}, Answer{Verdict: Retry, Reason: "away"}, false, StateBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.pod
			p.UID, p.Controller = "a", "c"
			s := begin(t, p)
			s.plan.limits.DeleteAfter = c.after
			next := func() bool {
				s.facts.Now = s.facts.Now.Add(maxRefusedDelay)
				evict, _ := s.plan.Next(&s.facts)
				return len(evict) == 1 && evict[0].Delete
			}
			for i := range 3 {
				if next() {
					t.Fatalf("deleted after %d refusals", i)
				}
				s.plan.Answer("a", c.answer, s.facts.Now)
			}
			if got := next(); got != c.deletes {
				t.Fatalf("deletes: %v; %s", got, s.states())
			}
			if c.deletes {
				// An error of the deletion is tried again, and never as an eviction.
				s.answer("a", Retry)
				if !next() {
					t.Error("the next request is no deletion")
				}
				s.answer("a", Accepted)
				if got := s.plan.Status()[0]; got.State != StateTerminating || got.Reason != "deleted after 3 refused evictions" {
					t.Errorf("%+v", got)
				}
			} else if e := s.plan.all[0]; e.before != c.state && e.state != c.state && c.answer.Verdict != Retry {
				t.Errorf("%s", s.states())
			}
		})
	}
}
