//go:build !unit

package evictions

import (
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

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
