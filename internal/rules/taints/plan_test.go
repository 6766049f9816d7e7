package taints

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// cluster is a World to which the decisions are applied.
type cluster struct {
	World

	state State
	plan  Plan
}

func (c *cluster) policy(notice, concurrent int, options ...v1alpha1.TaintOption) {
	n, m := int64(notice), int32(concurrent)
	c.Policy, _ = PolicyOf(&v1alpha1.TaintReplacement{Options: options, TaintReplacementTimeSeconds: &n, MaxConcurrentReplacements: &m}, Policy{})
}

func after(key string, seconds int64) v1alpha1.TaintOption {
	return v1alpha1.TaintOption{Key: key, DurationInSeconds: seconds}
}

// taint gives a node these taints, "key" or "key:effect", and no others.
func (c *cluster) taint(node string, taints ...string) {
	n := Node{Name: node, Ready: true}
	for _, t := range taints {
		key, effect, _ := strings.Cut(t, ":")
		if effect == "" {
			effect = "NoSchedule"
		}
		n.Taints = append(n.Taints, Taint{Key: key, Effect: effect})
	}
	c.Nodes[node] = n
}

// added sets timeAdded of a node's first taint, in seconds from the start.
func (c *cluster) added(node string, seconds int) {
	c.Nodes[node].Taints[0].Added = start.Add(time.Duration(seconds) * time.Second)
}

func (c *cluster) vm(name, node string, s kubevirt.EvictionStrategy, change ...func(*VM)) {
	v := VM{
		Namespace: "ns", Name: name, UID: name, Node: node, Strategy: s, Migratable: true, Launcher: true,
		Tolerates: func(TaintID) bool { return false },
	}
	for _, f := range change {
		f(&v)
	}
	c.VMs = append(c.VMs, v)
}

func (c *cluster) change(name string, f func(*VM)) {
	for i := range c.VMs {
		if c.VMs[i].Name == name {
			f(&c.VMs[i])
		}
	}
}

func notMigratable(v *VM) { v.Migratable = false }

// evaluate calls Next at a time, applies the actions, and returns conditions (D and R),
// reason and action of each VM.
func (c *cluster) evaluate(seconds int) map[string]string {
	c.Now = start.Add(time.Duration(seconds) * time.Second)
	c.plan = Next(c.World, c.state)
	c.state = c.plan.State
	results := map[string]string{}
	for _, v := range c.plan.VMs {
		word := ""
		if v.Detected != "" {
			word += "D"
		}
		if v.Replacing != "" {
			word += "R"
		}
		results[v.VM.Name] = strings.TrimSpace(word + " " + string(v.Reason) + " " + string(v.Action))
		c.change(v.VM.Name, func(vm *VM) {
			switch v.Action {
			case Mark:
				vm.Marked, vm.Ours = true, true
			case Evict:
				vm.Leaving = true
			case Unmark:
				vm.Marked, vm.Ours = false, false
			default:
			}
		})
	}
	return results
}

func given() *cluster {
	c := &cluster{World: World{Nodes: map[string]Node{}, NodesWithVMs: 100}}
	c.policy(10, 1, after("maint", 60))
	c.taint("n")
	return c
}

// step is a change at a time, and the expected result for VM a.
type step struct {
	at   int
	do   func(*cluster)
	want string
}

func none(*cluster) {}

func taints(all ...string) func(*cluster) { return func(c *cluster) { c.taint("n", all...) } }

// Each row is one rule about one VM on a tainted node.
func TestAVMOnATaintedNode(t *testing.T) {
	const live, ifPossible, external, off = kubevirt.StrategyLiveMigrate, kubevirt.StrategyLiveMigrateIfPossible, kubevirt.StrategyExternal, kubevirt.StrategyNone
	with := func(notice, n int, o ...v1alpha1.TaintOption) func(*cluster) {
		return func(c *cluster) { c.policy(notice, n, o...) }
	}
	both := func(all ...func(*cluster)) func(*cluster) {
		return func(c *cluster) {
			for _, f := range all {
				f(c)
			}
		}
	}
	vm := func(s kubevirt.EvictionStrategy, change ...func(*VM)) func(*cluster) {
		return func(c *cluster) { c.VMs = nil; c.vm("a", "n", s, change...) }
	}
	added := func(seconds int) func(*cluster) { return func(c *cluster) { c.added("n", seconds) } }
	is := func(f func(*VM)) func(*cluster) { return func(c *cluster) { c.change("a", f) } }
	for name, steps := range map[string][]step{
		"detected at once, replacing after the duration, replaced when that is old enough": {
			{0, none, ""}, {1, taints("maint"), "D NodeTainted"}, {60, none, "D NodeTainted"},
			{61, none, "DR Notice"}, {70, none, "DR Notice"}, {71, none, "DR InProgress Mark"}, {72, none, "DR InProgress"}},
		"no options are off, and the conditions are cleared": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {61, with(10, 1), ""}, {71, none, ""}},
		"disabled and enabled again, the clocks begin anew": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {61, with(10, 1), ""},
			{62, with(10, 1, after("maint", 60)), "D NodeTainted"}, {121, none, "D NodeTainted"}, {122, none, "DR Notice"}, {132, none, "DR InProgress Mark"}},
		"disabled and enabled again, the taint says since when it is there, and the notice is whole": {
			{0, both(taints("maint"), added(-100)), "DR Notice"}, {5, with(10, 1), ""},
			{6, with(10, 1, after("maint", 60)), "DR Notice"}, {15, none, "DR Notice"}, {16, none, "DR InProgress Mark"}},
		"switched off, a mark of ours goes": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"}, {71, with(10, 1), "Unmark"}, {72, none, ""}},
		"the exact key before *, wherever it stands": {
			{0, both(with(10, 1, after("*", 5), after("maint", 60)), taints("maint")), "D NodeTainted"}, {59, none, "D NodeTainted"}, {60, none, "DR Notice"}},
		"* is every other key": {
			{0, both(with(10, 1, after("maint", 60), after("*", 5)), taints("other")), "D NodeTainted"}, {5, none, "DR Notice"}},
		"a key without an option does not count": {
			{0, taints("other"), ""}, {1000, none, ""}},
		"negative is never": {
			{0, both(with(10, 1, after("maint", -1)), taints("maint")), "D NodeTainted"}, {1 << 30, none, "D NodeTainted"}},
		"a negative one before *": {
			{0, both(with(10, 1, after("*", 0), after("maint", -1)), taints("maint")), "D NodeTainted"}, {1000, none, "D NodeTainted"}},
		"the longest number is as good as never": {
			{0, both(with(10, 1, after("maint", 1<<63-1)), taints("maint")), "D NodeTainted"}, {1 << 30, none, "D NodeTainted"}},
		"a missing duration is 0: at once": {
			{0, both(with(10, 1, v1alpha1.TaintOption{Key: "maint"}), taints("maint")), "DR Notice"}, {10, none, "DR InProgress Mark"}},
		"the clock is of timeAdded": {
			{0, both(taints("maint"), added(-50)), "D NodeTainted"}, {9, none, "D NodeTainted"}, {10, none, "DR Notice"}},
		"an old taint gives the whole notice": {
			{0, both(taints("maint"), added(-5000)), "DR Notice"}, {9, none, "DR Notice"}, {10, none, "DR InProgress Mark"}},
		"a flap starts it anew": {
			{0, taints("maint"), "D NodeTainted"}, {50, taints(), ""}, {51, taints("maint"), "D NodeTainted"}, {110, none, "D NodeTainted"}, {111, none, "DR Notice"}},
		"a flap that no look fell into starts it anew": {
			{0, taints("maint"), "D NodeTainted"},
			{50, func(c *cluster) {
				delete(c.state.Clocks, TaintID{"n", "maint", "NoSchedule"})
			}, "D NodeTainted"},
			{109, none, "D NodeTainted"}, {110, none, "DR Notice"}},
		"a flap of a taint that fires at once gives the whole notice": {
			{0, both(with(10, 1, after("maint", 0)), taints("maint")), "DR Notice"},
			{9, func(c *cluster) { c.state.Clocks = nil }, "DR Notice"}, {18, none, "DR Notice"}, {19, none, "DR InProgress Mark"}},
		"a clock per effect": {
			{0, taints("maint"), "D NodeTainted"}, {50, taints("maint:NoExecute"), "D NodeTainted"}, {60, none, "D NodeTainted"}, {110, none, "DR Notice"}},
		"an ignored taint of two hours makes no new one fire": {
			{0, both(with(10, 1, after("maint", 60), after("old", -1)), taints("old", "maint"), added(-7200)), "D NodeTainted"},
			{59, none, "D NodeTainted"}, {60, none, "DR Notice"}},
		"a taint that does not count makes none fire": {
			{0, both(taints("other", "maint"), added(-7200)), "D NodeTainted"}, {59, none, "D NodeTainted"}, {60, none, "DR Notice"}},
		"the one that fired goes, the other has its own clock": {
			{0, both(with(10, 1, after("a", 5), after("b", 60)), taints("a", "b")), "D NodeTainted"}, {5, none, "DR Notice"},
			{6, taints("b"), "D NodeTainted"}, {60, none, "DR Notice"}, {69, none, "DR Notice"}, {70, none, "DR InProgress Mark"}},
		"the one that fired goes when the other has fired: the notice is anew": {
			{0, both(with(10, 1, after("a", 5), after("b", 8)), taints("a", "b")), "D NodeTainted"}, {5, none, "DR Notice"},
			{9, taints("b"), "DR Notice"}, {18, none, "DR Notice"}, {19, none, "DR InProgress Mark"}},
		"PreferNoSchedule does not count": {
			{0, taints("maint:PreferNoSchedule"), ""}, {1000, none, ""}},
		"what the launcher tolerates does not count": {
			{0, both(taints("maint"), vm(live, func(v *VM) { v.Tolerates = func(id TaintID) bool { return id.Key == "maint" } })), ""}, {1000, none, ""}},
		"what it tolerates makes no other fire": {
			{0, both(with(10, 1, after("*", 60)), vm(live, func(v *VM) { v.Tolerates = func(id TaintID) bool { return id.Key == "old" } }), taints("old", "new"), added(-7200)), "D NodeTainted"},
			{59, none, "D NodeTainted"}, {60, none, "DR Notice"}},
		"both are cleared when the taint goes": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {69, taints(), ""}, {70, none, ""}},
		"the mark goes with the taint": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"}, {75, taints(), "Unmark"}, {76, none, ""}},
		"the mark goes when only another taint is left, whose time has not come": {
			{0, both(with(10, 1, after("a", 0), after("b", 600)), taints("a", "b")), "DR Notice"}, {10, none, "DR InProgress Mark"}, {11, taints("b"), "D NodeTainted Unmark"}, {12, none, "D NodeTainted"}},
		"not while the launcher terminates": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"},
			{75, both(taints(), is(func(v *VM) { v.Leaving = true })), ""}},
		"not External's": {
			{0, both(taints("maint"), vm(external)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"}, {75, taints(), ""}},
		"not somebody else's": {
			{0, both(taints("maint"), is(func(v *VM) { v.Marked = true })), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR LeavesAnyway"}, {75, taints(), ""}},
		"LiveMigrateIfPossible, migratable: marked": {
			{0, both(taints("maint"), vm(ifPossible)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"}},
		"LiveMigrateIfPossible, not migratable: evicted": {
			{0, both(taints("maint"), vm(ifPossible, notMigratable)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Evict"}, {71, none, "DR InProgress"}},
		"None: evicted": {
			{0, both(taints("maint"), vm(off)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Evict"}, {99, none, "DR InProgress"}},
		"External: marked, migratable or not": {
			{0, both(taints("maint"), vm(external, notMigratable)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"}},
		"LiveMigrate, not migratable: only said": {
			{0, both(taints("maint"), vm(live, notMigratable)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR NotMigratable"},
			{71, is(func(v *VM) { v.Migratable = true }), "DR InProgress Mark"}},
		"marked, and not migratable since, with LiveMigrate: only said": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"},
			{75, is(notMigratable), "DR NotMigratable"}, {76, is(func(v *VM) { v.Migratable = true }), "DR InProgress"}},
		"marked, and not migratable since, with LiveMigrateIfPossible: evicted": {
			{0, both(taints("maint"), vm(ifPossible)), "D NodeTainted"}, {60, none, "DR Notice"}, {70, none, "DR InProgress Mark"},
			{75, is(notMigratable), "DR InProgress Evict"}, {76, none, "DR InProgress"}},
		"a node that is not Ready": {
			{0, taints("maint"), "D NodeTainted"},
			{60, func(c *cluster) { n := c.Nodes["n"]; n.Ready = false; c.Nodes["n"] = n }, "DR Notice"}, {70, none, "DR NodeNotReady"},
			{80, taints("maint"), "DR InProgress Mark"}},
		"no replacements at all": {
			{0, both(with(0, 0, after("maint", 0)), taints("maint")), "DR WaitsForItsTurn"}, {1, vm(external), "DR WaitsForItsTurn"}, {2, vm(off), "DR WaitsForItsTurn"}},
		"a launcher that is not known: nothing changes": {
			{0, taints("maint"), "D NodeTainted"}, {60, none, "DR Notice"}, {61, is(func(v *VM) { v.Launcher = false }), "LauncherNotKnown"},
			{80, none, "LauncherNotKnown"}, {81, is(func(v *VM) { v.Launcher = true }), "DR InProgress Mark"}},
		"on another tainted node the notice is anew": {
			{0, both(taints("maint"), func(c *cluster) { c.taint("m", "maint") }), "D NodeTainted"}, {60, none, "DR Notice"},
			{69, is(func(v *VM) { v.Node = "m" }), "DR Notice"}, {78, none, "DR Notice"}, {79, none, "DR InProgress Mark"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := given()
			c.vm("a", "n", live)
			for _, s := range steps {
				s.do(c)
				if got := c.evaluate(s.at)["a"]; got != s.want {
					t.Fatalf("after %d s: %q, want %q", s.at, got, s.want)
				}
			}
		})
	}
}
