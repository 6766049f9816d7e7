package drain

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world plays API server, kubelet and attach-detach controller, with whims.
type world struct {
	*rapid.T

	plan   *Plan
	facts  Facts
	pods   map[string]*Pod
	owed   map[string]bool      // answers
	ending map[string]time.Time // pods that terminate
	alone  map[string]bool      // pods that ended by themselves
}

func (w *world) chance(name string, percent int) bool {
	return rapid.IntRange(1, 100).Draw(w.T, name) <= percent
}

func newWorld(t *rapid.T) *world {
	w := &world{T: t, plan: NewPlan(ReattachTimeout), pods: map[string]*Pod{}, owed: map[string]bool{}, ending: map[string]time.Time{}, alone: map[string]bool{}, facts: Facts{
		Now: time.Unix(0, 0), Pods: map[string]Seen{}, Claims: map[string]int{}, Here: map[string]bool{}, Elsewhere: map[string]bool{},
	}}
	for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
		p := &Pod{UID: fmt.Sprint(i), Name: fmt.Sprint(i), Controller: "c", Grace: time.Duration(rapid.IntRange(0, 60).Draw(t, "grace")) * time.Second,
			Priority: int32(rapid.IntRange(-1, 1).Draw(t, "priority")), Launcher: w.chance("launcher", 40)}
		for range rapid.IntRange(0, 2).Draw(t, "volumes") {
			v := rapid.IntRange(0, 4).Draw(t, "volume") // some are shared
			p.Volumes = append(p.Volumes, Volume{Claim: fmt.Sprint(v), Name: fmt.Sprint("pv", v)})
			w.facts.Claims[fmt.Sprint(v)]++
			w.facts.Here[fmt.Sprint("pv", v)] = true
		}
		w.pods[p.UID] = p
		w.facts.Pods[p.UID] = Seen{}
		w.plan.Add(p)
	}
	return w
}

// step lets some time pass and some things happen.
func (w *world) step() {
	w.facts.Now = w.facts.Now.Add(time.Duration(rapid.IntRange(0, 40).Draw(w.T, "seconds")) * time.Second)
	for i := range len(w.pods) { // in order: a failure can be repeated
		uid := fmt.Sprint(i)
		if !w.owed[uid] || !w.chance("answers", 70) {
			continue
		}
		delete(w.owed, uid)
		v := rapid.SampledFrom([]Verdict{Accepted, Accepted, Accepted, Moving, Blocked, Retry, Failed}).Draw(w.T, "verdict")
		if _, there := w.facts.Pods[uid]; !there {
			v = Accepted // 404
		}
		if v == Accepted {
			w.ending[uid] = w.facts.Now.Add(w.pods[uid].Grace)
		}
		w.plan.Answer(uid, Answer{v, "said"}, w.facts.Now)
	}
	for i := range len(w.pods) {
		uid := fmt.Sprint(i)
		at, ending := w.ending[uid]
		if _, there := w.facts.Pods[uid]; !there {
			continue
		}
		if !ending && w.chance("ends by itself", 3) {
			w.alone[uid] = true
		}
		if ending && !w.facts.Now.Before(at) && w.chance("ends", 60) || w.alone[uid] {
			delete(w.facts.Pods, uid)
			for _, v := range w.pods[uid].Volumes {
				w.facts.Claims[v.Claim]--
			}
		}
	}
	for i := range 5 {
		name := fmt.Sprint("pv", i)
		if w.facts.Claims[fmt.Sprint(i)] == 0 && w.chance("detached", 50) {
			delete(w.facts.Here, name)
			w.facts.Elsewhere[name] = w.chance("attached elsewhere", 60)
		}
	}
}

// TestNoWorldMakesAPlanLie: in whatever order things happen, one pod with volumes
// at a time holds the line, nobody is asked about twice at once, drained is only
// what is gone with its volumes, and there is always an end.
func TestNoWorldMakesAPlanLie(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for steps := 0; !w.plan.Done(); steps++ {
			if steps > 2000 {
				rt.Fatalf("no end: %+v", w.plan.Status())
			}
			evict, again := w.plan.Next(&w.facts)
			for _, p := range evict {
				if w.owed[p.UID] {
					rt.Fatalf("%s is asked for twice", p.UID)
				}
				w.owed[p.UID] = true
			}
			w.check(again)
			w.step()
		}
	})
}

func (w *world) check(again time.Time) {
	holding := 0
	for _, e := range w.plan.all {
		if e.holdsLine() && !w.alone[e.pod.UID] {
			holding++
		}
		_, there := w.facts.Pods[e.pod.UID]
		if e.state == StateDrained && there {
			w.Fatalf("pod %s counts as drained and is there", e.pod.UID)
		}
		for _, v := range e.pod.Volumes {
			// One that another pod uses may come back only with that pod.
			if e.state == StateDetaching && w.facts.Here[v.Name] && again.IsZero() {
				w.Fatalf("pod %s waits for volume %s without a bound", e.pod.UID, v.Name)
			}
		}
	}
	if holding > 1 {
		w.Fatalf("%d pods hold the line: %+v", holding, w.plan.Status())
	}
	if w.plan.Done() && len(w.plan.Left()) == 0 && len(w.facts.Pods) > 0 {
		w.Fatalf("success, and there is %v", w.facts.Pods)
	}
}
