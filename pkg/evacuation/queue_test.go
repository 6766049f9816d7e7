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

func names(all []Moving) []string {
	var out []string
	for _, m := range all {
		out = append(out, m.Migration.Namespace+"/"+m.Migration.Spec.VMIName)
	}
	return out
}

func TestStart(t *testing.T) {
	const pending, running = kubevirt.MigrationPending, kubevirt.MigrationRunning
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
			moving("ns", "c", "n", pending, priority(kubevirt.PrioritySystemCritical)), moving("ns", "d", "m", pending)}, []string{"ns/d"}},
		"by rank": {[]Moving{
			moving("ns", "descheduler", "1", pending, priority(kubevirt.PrioritySystemMaintenance)),
			moving("ns", "user", "2", pending),
			moving("ns", "evacuation", "3", pending, priority(kubevirt.PrioritySystemCritical)),
			moving("ns", "later", "4", pending, heldUntil(20)),
			moving("ns", "sooner", "5", pending, heldUntil(10), priority(kubevirt.PrioritySystemMaintenance)),
		}, []string{"ns/sooner", "ns/later", "ns/evacuation", "ns/user", "ns/descheduler"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(Start(c.given, s)); !slices.Equal(got, c.want) {
				t.Errorf("begin %v, want %v", got, c.want)
			}
		})
	}
}

// For all migrations in any order: the limits are kept, and no free slot is left while a
// migration may have it.
func TestStartWithinLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Settings{PerCluster: rapid.IntRange(1, 6).Draw(t, "cluster"), PerNode: rapid.IntRange(1, 3).Draw(t, "node")}
		var all []Moving
		for n := range rapid.IntRange(0, 20).Draw(t, "migrations") {
			all = append(all, moving(fmt.Sprint("ns", n%2), fmt.Sprint("vm", n/2), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "on"),
				rapid.SampledFrom(phases()).Draw(t, "phase")))
		}
		begun := Start(all, s)
		again := Start(rapid.Permutation(all).Draw(t, "permutation"), s)
		if !slices.Equal(names(begun), names(again)) {
			t.Fatalf("another order gives %v, not %v", names(again), names(begun))
		}
		total, node := 0, map[string]int{}
		for _, m := range all {
			if !m.Migration.Final() && !pending(m.Migration) {
				total++
				node[m.Node]++
			}
		}
		for _, m := range begun {
			total++
			if node[m.Node]++; node[m.Node] > s.PerNode || total > s.PerCluster {
				t.Fatalf("%v begins beyond the limits %+v", m.vm(), s)
			}
		}
		for _, m := range all {
			if pending(m.Migration) && !slices.Contains(names(begun), names([]Moving{m})[0]) && total < s.PerCluster && node[m.Node] < s.PerNode {
				t.Fatalf("%v waits though there is room", m.vm())
			}
		}
	})
}

func TestPriority(t *testing.T) {
	if got := Priority("descheduler"); got != kubevirt.PrioritySystemMaintenance {
		t.Errorf("the descheduler's: %s", got)
	}
	if got := Priority(""); got != kubevirt.PrioritySystemCritical {
		t.Errorf("an eviction's: %s", got)
	}
}
