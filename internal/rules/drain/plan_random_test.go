package drain

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// cluster simulates API server, kubelet and attach-detach controller, at random.
type cluster struct {
	*rapid.T

	plan        *Plan
	facts       Facts
	pods        map[string]*Pod
	unanswered  map[string]bool      // evictions without an answer
	terminating map[string]time.Time // pods that terminate
	completed   map[string]bool      // pods that ended by themselves
}

func (c *cluster) chance(name string, percent int) bool {
	return rapid.IntRange(1, 100).Draw(c.T, name) <= percent
}

func newCluster(t *rapid.T) *cluster {
	c := &cluster{T: t, plan: NewPlan(Limits{Reattach: ReattachTimeout}), pods: map[string]*Pod{}, unanswered: map[string]bool{}, terminating: map[string]time.Time{}, completed: map[string]bool{}, facts: Facts{
		Now: time.Unix(0, 0), Pods: map[string]PodFacts{}, Claims: map[string]int{}, Here: map[string]bool{}, Elsewhere: map[string]bool{},
	}}
	for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
		p := &Pod{UID: fmt.Sprint(i), Name: fmt.Sprint(i), Controller: "c", Grace: time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Second,
			Priority: int32(rapid.IntRange(-1, 1).Draw(t, "priority")), Launcher: c.chance("launcher", 40)}
		for range rapid.IntRange(0, 2).Draw(t, "volumes") {
			v := rapid.IntRange(0, 4).Draw(t, "volume") // some are shared
			p.Volumes = append(p.Volumes, Volume{Claim: fmt.Sprint(v), Name: fmt.Sprint("pv", v)})
			c.facts.Claims[fmt.Sprint(v)]++
			c.facts.Here[fmt.Sprint("pv", v)] = true
		}
		c.pods[p.UID] = p
		c.facts.Pods[p.UID] = PodFacts{}
		c.plan.Add(p)
	}
	return c
}

// step advances the time, and makes random changes.
func (c *cluster) step() {
	c.facts.Now = c.facts.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(c.T, "seconds")) * time.Second)
	for i := range len(c.pods) { // in order: a failure can be repeated
		uid := fmt.Sprint(i)
		if !c.unanswered[uid] || !c.chance("answers", 70) {
			continue
		}
		delete(c.unanswered, uid)
		v := rapid.SampledFrom([]Verdict{Accepted, Accepted, Accepted, Moving, Blocked, Retry, Failed}).Draw(c.T, "verdict")
		if _, exists := c.facts.Pods[uid]; !exists {
			v = Accepted // 404
		}
		if v == Accepted {
			c.terminating[uid] = c.facts.Now.Add(c.pods[uid].Grace)
		}
		c.plan.Answer(uid, Answer{Verdict: v, Reason: "reason"}, c.facts.Now)
	}
	for i := range len(c.pods) {
		uid := fmt.Sprint(i)
		at, terminating := c.terminating[uid]
		if _, exists := c.facts.Pods[uid]; !exists {
			continue
		}
		if !terminating && c.chance("ends by itself", 3) {
			c.completed[uid] = true
		}
		if terminating && !c.facts.Now.Before(at) && c.chance("ends", 60) || c.completed[uid] {
			delete(c.facts.Pods, uid)
			for _, v := range c.pods[uid].Volumes {
				c.facts.Claims[v.Claim]--
			}
		}
	}
	for i := range 5 {
		name := fmt.Sprint("pv", i)
		if c.facts.Claims[fmt.Sprint(i)] == 0 && c.chance("detached", 50) {
			delete(c.facts.Here, name)
			c.facts.Elsewhere[name] = c.chance("attached elsewhere", 60)
		}
	}
}

// In any order of events at most one pod with volumes holds the queue, no pod has two
// evictions under way, a pod is drained only when it is gone, and the plan ends.
func TestPlanInRandomClusters(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt)
		for steps := 0; !c.plan.Done(); steps++ {
			if steps > 2000 {
				rt.Fatalf("no end: %+v", c.plan.Status())
			}
			evict, again := c.plan.Next(&c.facts)
			for _, p := range evict {
				if c.unanswered[p.UID] {
					rt.Fatalf("%s has two evictions under way", p.UID)
				}
				c.unanswered[p.UID] = true
			}
			c.check(again)
			c.step()
		}
	})
}

func (c *cluster) check(again time.Time) {
	holders := 0
	for _, e := range c.plan.all {
		if e.holdsQueue() && !c.completed[e.pod.UID] {
			holders++
		}
		_, exists := c.facts.Pods[e.pod.UID]
		if e.state == StateDrained && exists {
			c.Fatalf("pod %s is drained and still exists", e.pod.UID)
		}
		for _, v := range e.pod.Volumes {
			// A volume that another pod uses may come back only with that pod.
			if e.state == StateDetaching && c.facts.Here[v.Name] && again.IsZero() {
				c.Fatalf("pod %s waits for volume %s without a bound", e.pod.UID, v.Name)
			}
		}
	}
	if holders > 1 {
		c.Fatalf("%d pods hold the queue: %+v", holders, c.plan.Status())
	}
	if c.plan.Done() && len(c.plan.Left()) == 0 && len(c.facts.Pods) > 0 {
		c.Fatalf("the drain succeeded, and these pods exist: %v", c.facts.Pods)
	}
}
