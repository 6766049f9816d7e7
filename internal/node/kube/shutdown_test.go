//go:build !unit

package kube

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/vmgrace/vmgrace/internal/node/podcondition"
)

// Given a launcher pod with a condition of others. When the agent sets the condition
// ShuttingDown, then the watch shows it, and the other condition stays. Another pod of the name
// is not written to.
func TestOnlyTheConditionShuttingDownIsWritten(t *testing.T) {
	r := newRig(t)
	r.must("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", fmt.Sprintf(`{"metadata":{"name":"%s-shown"},
		"rules":[{"apiGroups":[""],"resources":["pods/status"],"verbs":["patch"]}]}`, r.name))
	r.must("POST", bindings, fmt.Sprintf(`{"metadata":{"name":"%[1]s-shown"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"%[1]s-shown"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%[1]q}]}`, r.name))
	r.watching()
	r.makePod("launcher", podOnServer{vmi: "vm"})
	r.must("PATCH", r.podPath("launcher")+"/status", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	var p podcondition.Pod
	shows := func(want podcondition.Condition) {
		t.Helper()
		r.eventually(func() bool {
			all := r.Launchers()
			if len(all) == 1 {
				p = all[0]
			}
			return len(all) == 1 && p.Shown == want
		}, "the pod does not show %+v", want)
	}
	shows(podcondition.Condition{})
	if p.Name != "launcher" || p.Domain != r.name+"_vm" || p.Namespace != r.name || p.Done {
		t.Errorf("%+v", p)
	}
	down := podcondition.Condition{Status: "True", Reason: "VMIDeleted", Message: "phase=ShuttingDown deadline=2026-03-01T12:00:30Z gracePeriodSeconds=30"}
	if err := r.SetShuttingDown(t.Context(), p, down); err != nil {
		t.Fatal(err)
	}
	shows(down)
	later := down
	later.Message = "phase=ShuttingDown deadline=2026-03-01T12:00:20Z gracePeriodSeconds=30"
	if err := r.SetShuttingDown(t.Context(), p, later); err != nil {
		t.Fatal(err)
	}
	shows(later)
	another := p
	another.UID = "11111111-2222-4333-8444-555555555555"
	if err := r.SetShuttingDown(t.Context(), another, down); err == nil {
		t.Error("another pod of the name was written to")
	}
	var is struct {
		Status struct{ Conditions []podCondition }
	}
	if err := json.Unmarshal(r.must("GET", r.podPath("launcher"), "").body, &is); err != nil {
		t.Fatal(err)
	}
	has := map[string]podCondition{}
	for _, c := range is.Status.Conditions {
		has[c.Type] = c
	}
	if len(is.Status.Conditions) != 2 || has["Ready"].Status != "True" || has["ShuttingDown"].Message != later.Message || has["ShuttingDown"].LastTransitionTime == "" {
		t.Errorf("%+v", is.Status.Conditions)
	}
}
