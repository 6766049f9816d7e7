//go:build !unit

package cluster_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given two KubeVirt objects, of which the oldest counts. When one of its settings is
// invalid, then an Event on the object reports it, a metric counts it, and the last valid
// setting stays in force. Otherwise a typing error would silently change how VMs are
// drained.
func TestInvalidSettingsAreReportedAndCounted(t *testing.T) {
	w := given(t)
	w.node("n1")
	address := "127.0.0.1:" + rig.FreePorts(t, 1)[0]
	w.controller("--leader-elect=false", "--metrics-address="+address)
	invalid := func(n string) {
		t.Helper()
		w.eventually(n+" settings are counted as invalid", func() bool {
			return strings.Contains(rig.Fetch("http://"+address+"/metrics"), "\nvmgrace_invalid_settings "+n+"\n")
		})
	}
	unstated := w.vm("unstated", "n1", "", migratable)
	oldest := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "a-oldest"}}
	oldest.Spec.Configuration.EvictionStrategy = new(kubevirt.StrategyLiveMigrate)
	w.make(oldest)
	w.keeps(unstated, 1)
	invalid("0")

	other := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "b-other"}}
	other.Spec.Configuration.EvictionStrategy = new(kubevirt.StrategyNone)
	w.make(other)
	w.event("b-other", "Ignored", "the oldest counts")
	invalid("1")

	change := func(configuration string) {
		t.Helper()
		w.Change(oldest, `{"spec":{"configuration":`+configuration+`}}`)
	}
	change(`{"migrations":{"bandwidthPerMigration":"soon"}}`) // not a quantity
	w.event("a-oldest", "InvalidSetting", "bandwidthPerMigration: soon is not")
	change(`{"migrations":null}`)
	invalid("1")
	change(`{"developerConfiguration":{"featureGates":["PreemptionEvictionLiveMigration","NoExecuteTaintEvictionLiveMigrations"]}}`)
	w.event("a-oldest", "UnknownFeatureGate", "NoExecuteTaintEvictionLiveMigrations")
	invalid("2")
	change(`{"developerConfiguration":null}`)
	invalid("1")
	change(`{"evictionStrategy":"Explode"}`)
	w.event("a-oldest", "InvalidSetting", "LiveMigrate stays in force")
	invalid("2")
	w.keeps(unstated, 1)

	w.must(w.Delete(t.Context(), oldest)) // then the other one is the oldest
	w.keeps(unstated, 0)
	invalid("0")
}
