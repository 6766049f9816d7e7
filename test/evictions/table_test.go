//go:build !unit

package evictions

import (
	"fmt"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Given VMs of each strategy, migratable or not, not marked and marked. When their launcher
// pods are evicted, then the client gets the answers of the contract's table, each row and
// both columns. A wrong answer would stop a VM that could move, or block a drain for good.
func TestEvictionsAreAnsweredByStrategy(t *testing.T) {
	replicas(t, 2)
	const budget = "Cannot evict pod as it would violate the pod's disruption budget."
	for _, c := range []struct {
		strategy   string
		migratable bool
		marks      bool   // the answer is the evacuation, and the VM is marked
		refused    string // otherwise the text of the 429, "" where the eviction is allowed
		second     string // the text of the 429 for a marked VM, "" where it is allowed
	}{
		{"", true, false, "", ""},
		{"None", true, false, "", ""},
		{"None", false, false, "", ""},
		{"Sometimes", true, false, "", ""}, // an unknown strategy counts as None
		{"LiveMigrate", true, true, "", budget},
		{"LiveMigrate", false, false, "is configured with an eviction strategy but is not live-migratable", "not live-migratable"},
		{"LiveMigrateIfPossible", true, true, "", budget},
		{"LiveMigrateIfPossible", false, false, "", ""},
		{"External", true, true, "", budget},
		{"External", false, true, "", budget},
	} {
		t.Run(fmt.Sprintf("%s,migratable=%v", c.strategy, c.migratable), func(t *testing.T) {
			v := newVM(t, vm{strategy: c.strategy, migratable: c.migratable})
			if c.second != "" {
				v.budget()
			}
			first := v.evict()
			switch {
			case c.marks:
				want := fmt.Sprintf(`Eviction triggered evacuation of VMI "default/%s"`, v.name)
				if first.code != 429 || !strings.HasSuffix(first.text, want) || first.retry != 0 {
					t.Errorf("%+v, want a 429 that ends with %q", first, want)
				}
				vmi := v.get()
				if vmi.Status.EvacuationNodeName != "node-a" || evacuation.ExplanationOf(vmi) != (evacuation.Explanation{Cause: "Eviction"}) || !vmi.ConditionIs(kubevirt.EvictionRequested, "True") {
					t.Errorf("not marked: %+v", vmi)
				}
			case c.refused != "":
				if first.code != 429 || !strings.Contains(first.text, "VMI "+v.name+" "+c.refused) {
					t.Errorf("%+v, want a 429 with %q", first, c.refused)
				}
			case first.code != 0:
				t.Errorf("%+v, want it to be allowed", first)
			}
			if !c.marks && v.get().Status.EvacuationNodeName != "" {
				t.Error("marked")
			}
			marked := newVM(t, vm{strategy: c.strategy, migratable: c.migratable, mark: "node-a"})
			if c.second != "" {
				marked.budget()
			}
			if a := marked.evict(); (c.second == "") != (a.code == 0) || !strings.Contains(a.text, c.second) {
				t.Errorf("marked: %+v, want %q", a, c.second)
			}
		})
	}
}

func TestTheClustersStrategyCountsWhereTheVMStatesNone(t *testing.T) {
	all := replicas(t, 2)
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevirt"}}
	kv.Spec.Configuration.EvictionStrategy = new(kubevirt.StrategyLiveMigrate)
	shared.In(t, "").Make(kv, "")
	allSay(t, all, "EvictionStrategy:LiveMigrate")
	for own, marks := range map[string]bool{"": true, "None": false, "Sometimes": false, "External": true} {
		v := newVM(t, vm{strategy: own, migratable: true})
		a := v.evict()
		if got := v.get().Status.EvacuationNodeName == "node-a"; got != marks || (a.code == 429) != marks {
			t.Errorf("the VMI's own is %q: %+v, marked: %v", own, a, got)
		}
	}
}

func TestAStaleMarkIsOverwritten(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, mark: "node-of-old"})
	if a := v.evict(); a.code != 429 || v.get().Status.EvacuationNodeName != "node-a" {
		t.Errorf("%+v, %+v", a, v.get().Status)
	}
}

func TestTheNodeOfALabelCounts(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true, noStatusNodeName: true})
	if a := v.evict(); a.code != 429 || v.get().Status.EvacuationNodeName != "node-a" {
		t.Errorf("%+v, %+v", a, v.get().Status)
	}
}

func TestAVMWithoutAStatusIsMarked(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "External", noStatus: true})
	if a := v.evict(); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") || v.get().Status.EvacuationNodeName != "node-a" {
		t.Errorf("%+v, %+v", a, v.get().Status)
	}
}

func TestDryRunsChangeNothing(t *testing.T) {
	replicas(t, 1)
	for name, dry := range map[string]func(*vm) answer{
		"deleteOptions": func(v *vm) answer {
			return v.evict(func(e *policyv1.Eviction) { e.DeleteOptions.DryRun = []string{"All"} })
		},
		"request": func(v *vm) answer {
			return v.told(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: v.NS, Name: v.launcher()}}, client.DryRunAll)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
			before := v.get().ResourceVersion
			if a := dry(v); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
				t.Errorf("%+v", a)
			}
			if after := v.get().ResourceVersion; after != before {
				t.Error("something was written")
			}
		})
	}
}

func TestADeschedulersEvictionIsRemembered(t *testing.T) {
	replicas(t, 1)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.evict(func(e *policyv1.Eviction) {
		e.Annotations = map[string]string{"requested-by": "sigs.k8s.io/descheduler"}
	})
	if now := v.get(); now.Annotations[kubevirt.EvictionSourceAnnotation] != "descheduler" || !evacuation.ExplanationOf(now).Descheduler {
		t.Errorf("explained as %v, %+v", now.Annotations, now.Status.Mark)
	}
	// The next mark is kubectl's.
	v.status(`{"evacuationNodeName":null}`)
	v.evict()
	if now := v.get(); now.Annotations[kubevirt.EvictionSourceAnnotation] != "" || evacuation.ExplanationOf(now) != (evacuation.Explanation{Cause: "Eviction"}) {
		t.Errorf("then explained as %v, %+v", now.Annotations, now.Status.Mark)
	}
}
