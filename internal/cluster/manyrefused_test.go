//go:build nightly && !unit

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// refusing is a policy that refuses all migrations and disruption budgets.
const refusing = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refusing}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [kubevirt.io], apiVersions: ["*"], resources: [virtualmachineinstancemigrations], operations: [CREATE]}
      - {apiGroups: [policy], apiVersions: ["*"], resources: [poddisruptionbudgets], operations: [CREATE]}
  validations: [{expression: "false", message: not in this cluster}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refusing}
spec: {policyName: refusing, validationActions: [Deny]}
`

// marked makes a marked VM with its launcher, from any goroutine.
func (w world) marked(name, node string) error {
	v := w.VMI(name, node, kubevirt.StrategyLiveMigrate)
	if err := w.TryMake(w.Context(), v, `{"phase":"Running","nodeName":"`+node+`","evacuationNodeName":"`+node+`","conditions":[`+migratable+`]}`); err != nil {
		return err
	}
	return w.TryMake(w.Context(), w.Launcher(v, node), "")
}

// answered counts the requests about VMs that the API server has answered.
func (w world) answered() float64 {
	w.Helper()
	return w.requests(`(?m)^apiserver_request_total\{.*resource="(virtualmachineinstances|virtualmachineinstancemigrations|poddisruptionbudgets|pods|events)".*verb="(POST|PATCH|PUT|DELETE|GET)".*\} (\S+)$`)
}

func TestThousandRefusedVMsAreTriedRarely(t *testing.T) {
	const vms = 1000
	w := given(t)
	w.node("refused")
	api.KubectlApply(w, refusing)
	t.Cleanup(func() { _, _ = api.TryKubectl(context.Background(), refusing, "delete", "-f", "-") })
	w.eventually("the policy refuses", func() bool {
		m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "probe-"}}
		return w.Create(t.Context(), m) != nil
	})
	var making errgroup.Group
	making.SetLimit(8)
	for i := range vms {
		making.Go(func() error { return w.marked(fmt.Sprint("vm-", i), "refused") })
	}
	w.must(making.Wait())
	p := w.alone()
	const said = "it fails and is tried again"
	for n := 100; n <= 2*vms; n += 100 { // a slow machine needs its time for the first pass
		w.eventually(fmt.Sprint("two controllers say it for ", vms, " VMs: ", n), func() bool { return strings.Count(p.Log(), said) >= n })
	}
	// Events of the first pass may still be written.
	w.eventually("it gets quiet", func() bool {
		before := w.answered()
		time.Sleep(time.Second) //nolint:forbidigo // the span that is measured
		return w.answered()-before <= 50
	})
	before := w.answered()
	time.Sleep(10 * time.Second) //nolint:forbidigo // the span that is measured
	if n := w.answered() - before; n > 500 {
		t.Errorf("%v requests in 10 s, want at most 50 a second", n)
	}
	if n := strings.Count(p.Log(), said); n != 2*vms {
		t.Errorf("said %d times by two controllers of %d VMs", n, vms)
	}
	if log := p.Log(); strings.Contains(log, "Reconciler error") {
		t.Error("each try is logged")
	}
	// When the policy no longer applies, then VMs are moved.
	api.Kubectl(w, "delete", "validatingadmissionpolicybinding", "refusing")
	w.eventually("VMs are moved", func() bool { return len(w.migrations()) > 20 })
}
