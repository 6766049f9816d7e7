package taints

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

const live, stopped = kubevirt.StrategyLiveMigrate, kubevirt.StrategyNone

// acts returns the VMs with an action, in order.
func (c *cluster) acts() (all []string) {
	for _, v := range c.plan.VMs {
		if v.Action != Nothing {
			all = append(all, v.VM.Name+" "+string(v.Action))
		}
	}
	return all
}

func (c *cluster) wants(t *testing.T, seconds int, want ...string) {
	t.Helper()
	results := c.evaluate(seconds)
	if got := c.acts(); !slices.Equal(got, want) {
		t.Fatalf("after %d s: %q, want %q; results: %v", seconds, got, want, results)
	}
}

func TestTheOldestIsReplacedFirstAndAsManyAsAllowedAtOnce(t *testing.T) {
	c := given()
	c.policy(10, 2, after("maint", 0))
	for i, node := range []string{"n1", "n2", "n3", "n4"} {
		c.taint(node, "maint")
		c.Nodes[node].Taints[0].Added = start.Add(time.Duration(3-i) * time.Second)
		c.vm(string(rune('d'-i)), node, live)
	}
	for i := range 4 { // n4 first
		c.evaluate(i)
	}
	c.wants(t, 11, "a Mark", "b Mark") // both due
	c.wants(t, 13)                     // c and d are due, and wait
	if results := c.evaluate(14); results["c"] != "DR WaitsForItsTurn" || results["d"] != "DR WaitsForItsTurn" {
		t.Errorf("%v", results)
	}
	c.change("a", func(v *VM) { *v = VM{Name: "a", UID: "a", Node: "elsewhere", Launcher: true} })
	c.wants(t, 15, "c Mark")
	c.VMs = slices.DeleteFunc(c.VMs, func(v VM) bool { return v.Name == "b" })
	c.wants(t, 16, "d Mark")
}

func TestWhatIsInFlight(t *testing.T) {
	for name, c := range map[string]struct {
		first func(*cluster)
		then  func(*cluster)
		want  []string
	}{
		"a marked one":                                      {func(c *cluster) { c.vm("a", "n", live) }, nil, nil},
		"an evicted one, while its pod is there":            {func(c *cluster) { c.vm("a", "n", stopped) }, nil, nil},
		"not when its pod has gone":                         {func(c *cluster) { c.vm("a", "n", stopped) }, func(c *cluster) { c.change("a", func(v *VM) { v.Launcher = false }) }, []string{"b Mark"}},
		"not External":                                      {func(c *cluster) { c.vm("a", "n", kubevirt.StrategyExternal) }, nil, []string{"b Mark"}},
		"not what is only said":                             {func(c *cluster) { c.vm("a", "n", live, notMigratable) }, nil, []string{"b Mark"}},
		"not a marked one that cannot be migrated any more": {func(c *cluster) { c.vm("a", "n", live) }, func(c *cluster) { c.change("a", notMigratable) }, []string{"b Mark"}},
		"an evicted one that cannot be migrated any more":   {func(c *cluster) { c.vm("a", "n", kubevirt.StrategyLiveMigrateIfPossible) }, func(c *cluster) { c.change("a", notMigratable) }, []string{"a Evict"}},
		"not what somebody else marked":                     {func(c *cluster) { c.vm("a", "n", live, func(v *VM) { v.Marked = true }) }, nil, []string{"b Mark"}},
		"not what somebody else stops":                      {func(c *cluster) { c.vm("a", "n", live, func(v *VM) { v.Leaving = true }) }, nil, []string{"b Mark"}},
		"not a marked one that has moved elsewhere":         {func(c *cluster) { c.vm("a", "n", live) }, func(c *cluster) { c.change("a", func(v *VM) { v.Node, v.Marked = "x", false }) }, []string{"b Mark"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := given()
			w.policy(10, 1, after("maint", 0))
			w.taint("n", "maint")
			c.first(w)
			w.evaluate(0)
			w.evaluate(10) // a's turn
			w.vm("b", "n", live)
			w.evaluate(11)
			if c.then != nil {
				c.then(w)
			}
			w.wants(t, 21, c.want...)
		})
	}
}

func TestManyTaintedNodesAtOnceReplaceNobody(t *testing.T) {
	const number, percent = intstr.Int, intstr.String
	for _, c := range []struct {
		limit                     *intstr.IntOrString
		withVMs, tainted, allowed int
		replaces                  bool
	}{
		{nil, 100, 10, 10, true}, {nil, 100, 11, 10, false},
		{nil, 5, 1, 1, true}, {nil, 5, 2, 1, false},
		{nil, 19, 2, 1, false}, // rounded down
		{&intstr.IntOrString{Type: number, IntVal: 3}, 100, 3, 3, true},
		{&intstr.IntOrString{Type: number, IntVal: 3}, 100, 4, 3, false},
		{&intstr.IntOrString{Type: number, IntVal: 0}, 100, 1, 1, true}, // at least 1
		{&intstr.IntOrString{Type: percent, StrVal: "0%"}, 100, 1, 1, true},
		{&intstr.IntOrString{Type: percent, StrVal: "50%"}, 8, 4, 4, true},
		{&intstr.IntOrString{Type: percent, StrVal: "50%"}, 8, 5, 4, false},
		{&intstr.IntOrString{Type: percent, StrVal: "7"}, 100, 8, 7, false},
	} {
		zero, many := int64(0), int32(1000)
		w := given()
		w.NodesWithVMs = c.withVMs
		w.Policy, _ = PolicyOf(&v1alpha1.TaintReplacement{
			Options: []v1alpha1.TaintOption{after("maint", 0), after("kept", -1), after("old", 1000)}, TaintReplacementTimeSeconds: &zero,
			MaxConcurrentReplacements: &many, MaxTaintedNodes: c.limit}, Policy{})
		for i := range c.tainted {
			node := fmt.Sprintf("n%d", i)
			w.taint(node, "maint")
			w.vm("on "+node, node, live)
		}
		for i := range 50 { // these do not count
			w.taint(fmt.Sprintf("empty%d", i), "maint")
			w.taint(fmt.Sprintf("kept%d", i), "kept")
			w.vm(fmt.Sprintf("kept%d", i), fmt.Sprintf("kept%d", i), live)
		}
		w.evaluate(0)
		if got := len(w.acts()) > 0; got != c.replaces || w.plan.TooMany() == c.replaces || w.plan.Allowed != c.allowed {
			t.Errorf("%v: %d of %d tainted: replaces %v, want %v; %d allowed, want %d", c.limit, c.tainted, c.withVMs, got, c.replaces, w.plan.Allowed, c.allowed)
		}
		if result := w.evaluate(1)["on n0"]; !c.replaces && result != "DR TooManyTaintedNodes" {
			t.Errorf("result: %q", result)
		}
	}
}

// A restarted controller has the persisted state, or only the VMs' conditions.
func TestARestartGoesOnWhereItWas(t *testing.T) {
	for name, lose := range map[string]func(*cluster){
		"nothing is lost": func(*cluster) {},
		"what was asked for": func(c *cluster) {
			for uid, p := range c.state.VMs {
				p.Asked, p.Failed = time.Time{}, time.Time{}
				c.state.VMs[uid] = p
			}
		},
		"all but the VM's condition and its taint's time": func(c *cluster) {
			c.change("a", func(v *VM) { v.Replacing = c.state.VMs["a"].Replacing })
			for id, at := range c.state.Clocks {
				c.Nodes[id.Node].Taints[0].Added = at
			}
			c.state = State{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := given()
			c.taint("n", "maint")
			c.vm("a", "n", live)
			c.evaluate(0)
			c.evaluate(60)
			c.wants(t, 65)
			lose(c)
			c.wants(t, 69)
			c.wants(t, 70, "a Mark")
			c.wants(t, 71)
			lose(c)
			c.wants(t, 72) // it is marked
			c.taint("n")
			c.wants(t, 73, "a Unmark")
		})
	}
}

// If the controller crashes between decision and request, the request is sent
// later.
func TestWhatWasDecidedAndNotDoneIsDone(t *testing.T) {
	c := given()
	c.policy(10, 1, after("maint", 0))
	c.taint("n", "maint")
	c.vm("a", "n", stopped)
	c.vm("b", "n", stopped)
	c.evaluate(0)
	c.wants(t, 10, "a Evict")
	c.change("a", func(v *VM) { v.Leaving = false }) // the crash
	// b is older than a now, and still comes after it.
	p := c.state.VMs["b"]
	p.Replacing = start.Add(-time.Hour)
	c.state.VMs["b"] = p
	c.wants(t, 11, "a Evict")
}

func TestWhatWasAskedForIsNotAskedForAgainAtOnce(t *testing.T) {
	c := given()
	c.policy(0, 1, after("maint", 0))
	c.taint("n", "maint")
	c.vm("a", "n", stopped)
	c.wants(t, 0, "a Evict")
	ask := func(change func(*Progress)) {
		c.change("a", func(v *VM) { v.Leaving = false }) // the cache is stale
		p := c.state.VMs["a"]
		change(&p)
		c.state.VMs["a"] = p
	}
	ask(func(p *Progress) { p.Asked = c.Now })
	c.wants(t, 1)
	if c.plan.InFlight != 1 || c.plan.Again != 4*time.Second {
		t.Errorf("%d in flight, looks again in %v", c.plan.InFlight, c.plan.Again)
	}
	c.wants(t, 5, "a Evict")
	// A refused request is retried after half a minute; others go on.
	c.vm("b", "n", stopped)
	ask(func(p *Progress) { p.Asked, p.Failed, p.Why = time.Time{}, c.Now, "a budget" })
	c.wants(t, 6, "b Evict")
	if result := c.evaluate(7)["a"]; result != "DR EvictionRefused" {
		t.Error(result)
	}
	c.VMs = c.VMs[:1]
	c.wants(t, 34)
	c.wants(t, 35, "a Evict")
}

func TestItLooksAgainWhenSomethingIsDueAndNotOtherwise(t *testing.T) {
	c := given()
	c.vm("a", "n", live)
	for _, s := range []struct {
		at   int
		do   func(*cluster)
		want time.Duration
	}{
		{0, none, 0}, {1, taints("maint"), time.Minute}, {11, none, 50 * time.Second}, {61, none, 10 * time.Second}, {71, none, 0},
		{72, taints("maint", "other"), 0},
	} {
		s.do(c)
		if c.evaluate(s.at); c.plan.Again != s.want {
			t.Errorf("after %d s it looks again in %v, want %v", s.at, c.plan.Again, s.want)
		}
	}
}

// Next is idempotent: it changes no state while nothing else changes.
func TestALookThatMeetsNothingNewChangesNothing(t *testing.T) {
	c := given()
	c.taint("n", "maint", "other")
	c.vm("a", "n", live)
	c.vm("b", "n", stopped)
	for at := range 200 {
		c.evaluate(at)
		before := c.state
		first := slices.Clone(c.plan.VMs)
		again := Next(c.World, before)
		if !maps.Equal(again.State.VMs, before.VMs) || !maps.Equal(again.State.Clocks, before.Clocks) {
			t.Fatalf("after %d s: %+v, then %+v", at, before, again.State)
		}
		for i := range first {
			if first[i].Detected != again.VMs[i].Detected || first[i].Action == Nothing && first[i].Replacing != again.VMs[i].Replacing {
				t.Fatalf("after %d s: %+v, then %+v", at, first[i], again.VMs[i])
			}
		}
	}
}

func TestAPolicyThatCannotBeUsedStaysAsItWas(t *testing.T) {
	bad, worse := int64(-1), int32(-1)
	was := Policy{Notice: time.Minute, MaxConcurrent: 7, MaxTainted: Share{Nodes: 3}}
	for _, word := range []string{"ten", "-1", "101%", "10 %", "%", "1.5"} {
		limit := intstr.FromString(word)
		got, invalid := PolicyOf(&v1alpha1.TaintReplacement{TaintReplacementTimeSeconds: &bad, MaxConcurrentReplacements: &worse, MaxTaintedNodes: &limit}, was)
		if len(invalid) != 3 || got.Notice != was.Notice || got.MaxConcurrent != 7 || got.MaxTainted != was.MaxTainted {
			t.Errorf("%s: %+v, invalid: %q", word, got, invalid)
		}
	}
	got, invalid := PolicyOf(nil, was)
	if len(invalid) > 0 || !got.Off() || got.Notice != 30*time.Minute || got.MaxConcurrent != 1 || got.MaxTainted != (Share{Percent: 10}) {
		t.Errorf("the defaults: %+v, %v", got, invalid)
	}
}
