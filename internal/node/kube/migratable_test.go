//go:build !unit

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/vmgrace/vmgrace/internal/node/migratable"
)

// mayTell gives the rig's user the additional right of an agent that takes part
// in migrations.
func (r *rig) mayTell() {
	r.Helper()
	r.must("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", fmt.Sprintf(`{"metadata":{"name":"%s-migratable"},
		"rules":[{"apiGroups":["kubevirt.io"],"resources":["virtualmachineinstances/status"],"verbs":["patch"]}]}`, r.name))
	r.must("POST", bindings, fmt.Sprintf(`{"metadata":{"name":"%[1]s-migratable"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"%[1]s-migratable"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%[1]q}]}`, r.name))
	// Another test removes the status from the CRD for a while.
	r.makeVMI("probe", "", `{}`)
	r.eventually(func() bool { return r.do("PATCH", r.vmiPath("probe")+"/status", `{}`).code == http.StatusOK }, "no status is served")
}

// migratableOf waits until the Source shows this status of the VMI's condition.
func (r *rig) migratableOf(name, status string) (v migratable.VMI) {
	r.Helper()
	r.eventually(func() bool {
		for _, v = range r.OfNode() {
			if v.Name == name && v.Namespace == r.name && v.Shown.Status == status {
				return true
			}
		}
		return false
	}, "VMI %s does not show LiveMigratable %q", name, status)
	return v
}

func (r *rig) conditions(name string) []map[string]any {
	r.Helper()
	var is struct {
		Status struct{ Conditions []map[string]any }
	}
	if err := json.Unmarshal(r.must("GET", r.vmiPath(name), "").body, &is); err != nil {
		r.Fatal(err)
	}
	return is.Status.Conditions
}

func TestOnlyTheConditionLiveMigratableIsWritten(t *testing.T) {
	r := newRig(t)
	r.mayTell()
	r.watching()
	yes := migratable.Verdict{Status: "True"}
	no := migratable.Verdict{Status: "False", Reason: "HostDeviceNotLiveMigratable", Message: "a host device"}
	// Given VMIs without a status, with conditions of others, and with a
	// condition LiveMigratable that has an unknown field.
	for name, status := range map[string]string{
		"bare": ``, "others": `{"conditions":[{"type":"Ready","status":"True"}]}`,
		"shown": `{"nodeName":"` + r.name + `","conditions":[{"type":"Ready","status":"True"},{"type":"LiveMigratable","status":"False","reason":"R","message":"M","unknownField":"kept"}]}`,
	} {
		r.makeVMI(name, "", `{}`)
		if status != "" {
			r.must("PATCH", r.vmiPath(name)+"/status", `{"status":`+status+`}`)
		}
	}
	for name, from := range map[string]string{"bare": "", "others": "", "shown": "False"} {
		// When the agent says True, and False after it.
		if err := r.SetLiveMigratable(t.Context(), r.migratableOf(name, from), yes); err != nil {
			t.Fatal(err)
		}
		if v := r.migratableOf(name, "True"); v.Shown != yes {
			t.Errorf("%s shows %+v", name, v.Shown)
		}
		if err := r.SetLiveMigratable(t.Context(), r.migratableOf(name, "True"), no); err != nil {
			t.Fatal(err)
		}
		if v := r.migratableOf(name, "False"); v.Shown != no {
			t.Errorf("%s shows %+v", name, v.Shown)
		}
		// Then nothing else has changed.
		has := r.conditions(name)
		if name != "bare" && (len(has) != 2 || has[0]["type"] != "Ready" || has[0]["status"] != "True") || name == "bare" && len(has) != 1 {
			t.Errorf("%s has %v", name, has)
		}
		if name == "shown" && has[1]["unknownField"] != "kept" {
			t.Errorf("a field is lost: %v", has)
		}
	}
}

func TestAVMIThatIsAnotherOneOrElsewhereIsNotWrittenTo(t *testing.T) {
	r := newRig(t)
	r.mayTell()
	r.watching()
	r.makeVMI("moved", "", `{}`)
	r.must("PATCH", r.vmiPath("moved")+"/status", `{"status":{"nodeName":"elsewhere"}}`)
	r.makeVMI("anew", "", `{}`)
	moved, anew := r.migratableOf("moved", ""), r.migratableOf("anew", "")
	anew.UID = "another"
	for _, v := range []migratable.VMI{moved, anew} {
		if err := r.SetLiveMigratable(t.Context(), v, migratable.Verdict{Status: "True"}); err != nil {
			t.Error(err)
		}
		if has := r.conditions(v.Name); len(has) > 0 {
			t.Errorf("%s has %v", v.Name, has)
		}
	}
}
