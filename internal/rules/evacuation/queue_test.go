package evacuation

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func moving(namespace, vm, node string, phase kubevirt.MigrationPhase, change ...func(*Moving)) Moving {
	m := migration("of-"+vm, phase)
	m.Namespace, m.Spec.VMIName = namespace, vm
	out := Moving{Migration: &m, Node: node}
	for _, f := range change {
		f(&out)
	}
	return out
}

func priority(p string) func(*Moving) { return func(m *Moving) { m.Migration.Spec.Priority = &p } }

func heldUntil(second int) func(*Moving) {
	return func(m *Moving) { m.HeldUntil = at(second).Time }
}

func waits(m *Moving)  { m.Waits = true }
func leaves(m *Moving) { m.Marked = true }
func evacuates(m *Moving) {
	m.Migration.Annotations = map[string]string{kubevirt.EvacuationMigrationAnnotation: m.Node}
}
func blocked(m *Moving) { m.Blocked = true }

func names(all []Moving) []string {
	var out []string
	for _, m := range all {
		out = append(out, m.Migration.Namespace+"/"+m.Migration.Spec.VMIName)
	}
	return out
}

func TestTurns(t *testing.T) {
	const pending, scheduling, running = kubevirt.MigrationPending, kubevirt.MigrationScheduling, kubevirt.MigrationRunning
	s := Defaults()
	for name, c := range map[string]struct {
		given []Moving
		want  []string
	}{
		"nothing": {},
		"two of a node": {[]Moving{moving("ns", "a", "n", ""), moving("ns", "b", "n", pending), moving("ns", "c", "n", pending)},
			[]string{"ns/a", "ns/b"}},
		"one moves already": {[]Moving{moving("ns", "a", "n", running), moving("ns", "b", "n", pending), moving("ns", "c", "n", pending)},
			[]string{"ns/b"}},
		"finished ones take no room": {[]Moving{moving("ns", "a", "n", "Succeeded"), moving("ns", "b", "n", "Failed"), moving("ns", "c", "n", pending)},
			[]string{"ns/c"}},
		"the same name in two namespaces is two VMs": {[]Moving{moving("x", "vm", "n", running), moving("y", "vm", "n", running), moving("z", "vm", "n", pending)},
			nil},
		"five in the cluster": {[]Moving{moving("ns", "a", "1", running), moving("ns", "b", "2", running), moving("ns", "c", "3", running),
			moving("ns", "d", "4", running), moving("ns", "e", "5", pending), moving("ns", "f", "6", pending)}, []string{"ns/e"}},
		"a second one of the VM": {[]Moving{moving("ns", "a", "n", running), moving("ns", "a", "n", pending)}, nil},
		"a full node lets others pass": {[]Moving{moving("ns", "a", "n", running), moving("ns", "b", "n", running),
			moving("ns", "c", "n", pending, leaves), moving("ns", "d", "m", pending)}, []string{"ns/d"}},
		"by rank": {[]Moving{
			moving("ns", "descheduler", "1", pending, priority(kubevirt.PrioritySystemMaintenance)),
			moving("ns", "user", "2", pending),
			moving("ns", "evacuation", "3", pending, leaves, priority(kubevirt.PrioritySystemCritical)),
			moving("ns", "later", "4", pending, heldUntil(20)),
			moving("ns", "sooner", "5", pending, heldUntil(10), priority(kubevirt.PrioritySystemMaintenance)),
		}, []string{"ns/sooner", "ns/later", "ns/evacuation", "ns/user", "ns/descheduler"}},
		"what a user's own says of itself makes it no evacuation": {[]Moving{
			moving("ns", "claims", "1", pending, priority(kubevirt.PrioritySystemCritical), evacuates), moving("ns", "a", "2", pending), moving("ns", "z", "3", pending, leaves),
		}, []string{"ns/z", "ns/a", "ns/claims"}},
		"who waits for the scheduler has no slot": {[]Moving{moving("ns", "a", "n", scheduling, waits), moving("ns", "b", "n", scheduling, waits),
			moving("ns", "c", "n", pending), moving("ns", "d", "n", pending), moving("ns", "e", "n", pending)}, []string{"ns/c", "ns/d"}},
		"as many as slots wait without one": {[]Moving{moving("ns", "a", "n", scheduling, waits), moving("ns", "b", "n", scheduling, waits),
			moving("ns", "c", "n", scheduling, waits), moving("ns", "d", "n", pending), moving("ns", "e", "n", pending)}, []string{"ns/c", "ns/d"}},
		"and no more": {[]Moving{moving("ns", "a", "n", scheduling, waits), moving("ns", "b", "n", scheduling, waits),
			moving("ns", "c", "n", scheduling, waits), moving("ns", "d", "n", scheduling, waits), moving("ns", "e", "n", pending)}, []string{"ns/c", "ns/d"}},
		"one that was placed goes before those that wait for their turn": {[]Moving{moving("ns", "a", "n", running),
			moving("ns", "b", "n", pending, leaves), moving("ns", "z", "n", scheduling)}, []string{"ns/z"}},
		"one that was placed waits for a slot": {[]Moving{moving("ns", "a", "n", running), moving("ns", "b", "n", running), moving("ns", "c", "n", scheduling)}, nil},
		"a held one goes before all that are not sent yet": {[]Moving{moving("ns", "a", "n", scheduling), moving("ns", "b", "n", scheduling),
			moving("ns", "c", "n", pending, heldUntil(10))}, []string{"ns/c", "ns/a"}},
		"one that cannot start": {[]Moving{moving("ns", "a", "n", pending, blocked), moving("ns", "b", "n", pending), moving("ns", "c", "n", pending)},
			[]string{"ns/b", "ns/c"}},
		"what was written counts before it is read": {[]Moving{moving("ns", "a", "n", pending, func(m *Moving) { m.Phase = "Scheduled" }),
			moving("ns", "b", "n", scheduling, func(m *Moving) { m.Phase = "Scheduled" }), moving("ns", "c", "n", pending)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(Turns(c.given, s)); !slices.Equal(got, c.want) {
				t.Errorf("begin %v, want %v", got, c.want)
			}
		})
	}
}

func to(node string) func(*Moving) { return func(m *Moving) { m.Target = node } }

func TestTurnsByTarget(t *testing.T) {
	const scheduling, running = kubevirt.MigrationScheduling, kubevirt.MigrationRunning
	s := Defaults()
	s.PerCluster, s.PerTarget = 6, 2
	given := []Moving{
		moving("ns", "a", "1", running, to("t")), moving("ns", "b", "2", scheduling, to("t")), moving("ns", "c", "3", scheduling, to("t")),
		moving("ns", "d", "4", scheduling, to("u")), moving("ns", "e", "5", scheduling),
	}
	if got, want := names(Turns(given, s)), []string{"ns/b", "ns/d", "ns/e"}; !slices.Equal(got, want) {
		t.Errorf("begin %v, want %v: one node takes two guests", got, want)
	}
	// What was written counts before the cache shows it.
	given[1].Phase = kubevirt.MigrationScheduled
	if got, want := names(Turns(given, s)), []string{"ns/d", "ns/e"}; !slices.Equal(got, want) {
		t.Errorf("begin %v, want %v: the second guest is on its way", got, want)
	}
	// Who waits for a full node leaves its slot to others, and never begins for that.
	s.PerCluster = 2
	given = []Moving{moving("ns", "a", "1", running, to("t")), moving("ns", "b", "2", running, to("t"))}
	for i := range 3 {
		given = append(given, moving("ns", fmt.Sprint("c", i), fmt.Sprint("n", i), scheduling, to("t")))
	}
	if got := names(Turns(given, s)); len(got) > 0 {
		t.Errorf("%v begin beyond the limit of their target", got)
	}
	s.PerCluster = 3
	if got, want := names(Turns(append(given, moving("ns", "z", "z", scheduling, to("u"))), s)), []string{"ns/z"}; !slices.Equal(got, want) {
		t.Errorf("begin %v, want %v", got, want)
	}
}

// A VM whose shutdown is held does not wait until others have arrived on its target.
func TestAHeldShutdownWaitsForNoTarget(t *testing.T) {
	s := Defaults()
	s.PerTarget = 1
	given := []Moving{moving("ns", "a", "1", kubevirt.MigrationRunning, to("t")), moving("ns", "h", "2", kubevirt.MigrationScheduling, to("t"), heldUntil(9))}
	if got, want := names(Turns(given, s)), []string{"ns/h"}; !slices.Equal(got, want) {
		t.Errorf("begin %v, want %v", got, want)
	}
}

// Sixty VMs of one tainted node have a hundred seconds: their moves have a limit of their own.
func TestTurnsOfHeldShutdowns(t *testing.T) {
	s := Defaults()
	s.Held = 3
	given := []Moving{moving("ns", "a", "n", kubevirt.MigrationRunning, heldUntil(9)), moving("ns", "y", "n", kubevirt.MigrationRunning), moving("ns", "z", "n", "")}
	for i := range 4 {
		given = append(given, moving("ns", fmt.Sprint("h", i), "n", "", heldUntil(10+i)))
	}
	if got, want := names(Turns(given, s)), []string{"ns/h0", "ns/h1", "ns/z"}; !slices.Equal(got, want) {
		t.Errorf("begin %v, want %v", got, want)
	}
	s.Held = 0 // then they count for the limits of all
	if got := names(Turns(given, s)); len(got) > 0 {
		t.Errorf("%v begin beyond the limit of their node", got)
	}
}

// In any order of migrations the limits are kept, no held migration is passed over by a later
// one, and no slot stays free while a migration may have it.
func TestTurnsWithinLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Settings{PerCluster: rapid.IntRange(1, 6).Draw(t, "cluster"), PerNode: rapid.IntRange(1, 3).Draw(t, "node"),
			PerTarget: rapid.IntRange(1, 3).Draw(t, "target"), Held: rapid.IntRange(0, 4).Draw(t, "held")}
		var all []Moving
		for n := range rapid.IntRange(0, 20).Draw(t, "migrations") {
			m := moving(fmt.Sprint("ns", n%2), fmt.Sprint("vm", n), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "on"),
				rapid.SampledFrom(phases()).Draw(t, "phase"))
			m.Waits = m.phase() == kubevirt.MigrationScheduling && rapid.Bool().Draw(t, "waits")
			if !m.starts() && !m.Waits {
				m.Target = rapid.SampledFrom([]string{"t", "u"}).Draw(t, "to")
			}
			if rapid.IntRange(0, 4).Draw(t, "isHeld") == 0 {
				m.HeldUntil = at(n).Time
			}
			all = append(all, m)
		}
		turns := Turns(all, s)
		again := Turns(rapid.Permutation(all).Draw(t, "permutation"), s)
		if !slices.Equal(names(turns), names(again)) {
			t.Fatalf("another order gives %v, not %v", names(again), names(turns))
		}
		used := newSlots(s)
		for _, m := range all {
			if p := m.phase(); !m.Migration.Final() && p != kubevirt.MigrationPending && p != kubevirt.MigrationScheduling {
				used.take(&m)
			}
		}
		for _, m := range turns {
			if !used.free(&m) || used.full(&m) {
				t.Fatalf("%v has a turn beyond the limits %+v", m.vm(), s)
			}
			used.take(&m)
		}
		for _, m := range all {
			if m.Migration.Final() || m.Waits || used.full(&m) || !m.starts() && m.phase() != kubevirt.MigrationScheduling || slices.Contains(names(turns), names([]Moving{m})[0]) {
				continue
			}
			// Who waits for a full node may have a slot, as who waits for the scheduler.
			if used.free(&m) && used.target["t"] < s.PerTarget && used.target["u"] < s.PerTarget {
				t.Fatalf("%v waits though there is room", m.vm())
			}
			roomOnNode := used.HasOwnSlots(&m) || used.node[m.Node] < s.PerNode
			for _, other := range turns {
				if m.held() && other.held() && other.HeldUntil.After(m.HeldUntil) && (roomOnNode || other.Node == m.Node) {
					t.Fatalf("%v, which is held, waits behind %v", m.vm(), other.vm())
				}
			}
		}
	})
}

// In a world where some pods fit no node and others do, every VM that can move has moved
// after a bounded number of steps, however many cannot.
func TestWhoCanMoveIsNotHeldUpByWhoCannot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Settings{PerCluster: rapid.IntRange(1, 5).Draw(t, "cluster"), PerNode: rapid.IntRange(1, 2).Draw(t, "node")}
		stuck, able := rapid.IntRange(0, min(s.PerNode, s.PerCluster)).Draw(t, "stuck"), rapid.IntRange(1, 10).Draw(t, "able")
		var all []Moving
		fits := map[string]bool{}
		for n := range stuck + able {
			m := moving("ns", fmt.Sprintf("vm%02d", n), "a", kubevirt.MigrationPending)
			fits[m.vm()] = n >= stuck // those that fit nowhere are first in the queue
			all = append(all, m)
		}
		moved := 0
		for range 3 * (able + 2) {
			for _, m := range Turns(all, s) {
				at := slices.IndexFunc(all, func(o Moving) bool { return o.vm() == m.vm() })
				switch {
				case m.starts():
					all[at].Phase, all[at].Waits = kubevirt.MigrationScheduling, !fits[m.vm()]
				case fits[m.vm()]:
					all[at].Migration.Status.Phase = kubevirt.MigrationSucceeded
					moved++
				}
			}
		}
		if moved != able {
			t.Fatalf("%d of %d have moved beside %d that fit nowhere", moved, able, stuck)
		}
	})
}

// Given migrations that only a person may be able to end, as of a rack without power. Then those from their node wait,
// and those from other nodes do not. One whose end cannot be written holds nothing, and neither does one of a former
// VM of the same name.
func TestUndecidedMigrationsKeepNoOtherNodesVMs(t *testing.T) {
	const pending, running = kubevirt.MigrationPending, kubevirt.MigrationRunning
	undecided := func(m *Moving) { m.Undecided = true }
	over := func(m *Moving) { m.Phase = kubevirt.MigrationFailed }
	s := Settings{PerCluster: 2, PerNode: 2, PerTarget: 4}
	for name, c := range map[string]struct {
		given func(*Moving)
		want  []string
	}{
		"they go on":           {func(*Moving) {}, nil},
		"undecided":            {undecided, []string{"ns/other"}},
		"their end is refused": {over, []string{"ns/other", "ns/same"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := []Moving{moving("ns", "x", "a", running, c.given), moving("ns", "y", "a", running, c.given), moving("ns", "same", "a", pending), moving("ns", "other", "b", pending)}
			if got := names(Turns(all, s)); !slices.Equal(got, c.want) {
				t.Errorf("%v have a turn, want %v", got, c.want)
			}
		})
	}
	former, anew := moving("ns", "x", "a", running), moving("ns", "x", "b", pending)
	former.VMI, anew.VMI = "1", "2"
	if got := Turns([]Moving{former, anew}, s); len(got) != 1 {
		t.Errorf("beside a former VM's %d have a turn", len(got))
	}
}

// Given an evacuation that was made for the descheduler. Then it goes behind users' for as long as nobody else wants
// the VM elsewhere.
func TestTheDeschedulersRankGoesWithItsMark(t *testing.T) {
	user := moving("ns", "user", "a", kubevirt.MigrationPending)
	for descheduler, want := range map[bool]string{true: "ns/user", false: "ns/vm"} {
		m := moving("ns", "vm", "b", kubevirt.MigrationPending, priority(kubevirt.PrioritySystemMaintenance))
		m.Marked, m.Descheduler = true, descheduler
		if got := names(Turns([]Moving{user, m}, Settings{PerCluster: 1, PerNode: 1, PerTarget: 1})); !slices.Equal(got, []string{want}) {
			t.Errorf("only the descheduler wants it: %v: %v has the turn", descheduler, got)
		}
	}
}

func TestPriority(t *testing.T) {
	if got := Priority("descheduler"); got != kubevirt.PrioritySystemMaintenance {
		t.Errorf("the descheduler's: %s", got)
	}
	if got := Priority(""); got != kubevirt.PrioritySystemCritical {
		t.Errorf("an eviction's: %s", got)
	}
}
