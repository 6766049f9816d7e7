//go:build !unit

package controller_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// refusing refuses all migrations and disruption budgets.
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
	strategy := kubevirt.StrategyLiveMigrate
	v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	v.Spec.EvictionStrategy = &strategy
	if err := w.Create(w.Context(), v); err != nil {
		return err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "virt-launcher-" + name,
			Labels:      map[string]string{kubevirt.AppLabel: kubevirt.LauncherApp, kubevirt.CreatedByLabel: string(v.UID)},
			Annotations: map[string]string{kubevirt.DomainAnnotation: name}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "compute", Image: "x"}}},
	}
	if err := w.Create(w.Context(), pod); err != nil {
		return err
	}
	status := `{"status":{"phase":"Running","nodeName":"` + node + `","evacuationNodeName":"` + node + `","conditions":[` + migratable + `]}}`
	return w.Status().Patch(w.Context(), v, client.RawPatch(types.MergePatchType, []byte(status)))
}

var counted = regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="(virtualmachineinstances|virtualmachineinstancemigrations|poddisruptionbudgets|pods|events)".*verb="(POST|PATCH|PUT|DELETE|GET)".*\} (\S+)$`)

// requests counts what the API server has answered about VMs.
func (w world) requests() (n float64) {
	w.Helper()
	for _, line := range counted.FindAllStringSubmatch(api.Kubectl(w, "get", "--raw", "/metrics"), -1) {
		v, err := strconv.ParseFloat(line[3], 64)
		w.must(err)
		n += v
	}
	return n
}

// refusedBudgets counts the budgets that the API server has refused to make.
func (w world) refusedBudgets() int {
	w.Helper()
	line := regexp.MustCompile(`(?m)^apiserver_request_total\{.*code="403".*resource="poddisruptionbudgets".*verb="POST".*\} (\d+)$`)
	n := 0
	for _, found := range line.FindAllStringSubmatch(api.Kubectl(w, "get", "--raw", "/metrics"), -1) {
		more, err := strconv.Atoi(found[1])
		w.must(err)
		n += more
	}
	return n
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
	w.eventually("half of it is said", func() bool { return strings.Count(p.output(), said) >= vms })
	w.eventually("each is said by both controllers", func() bool { return strings.Count(p.output(), said) >= 2*vms })
	// Events of the first pass may still be written.
	w.eventually("it gets quiet", func() bool {
		before := w.requests()
		time.Sleep(time.Second) //nolint:forbidigo // the span that is measured
		return w.requests()-before <= 50
	})
	before := w.requests()
	time.Sleep(10 * time.Second) //nolint:forbidigo // the span that is measured
	if n := w.requests() - before; n > 500 {
		t.Errorf("%v requests in 10 s, want at most 50 a second", n)
	}
	if n := strings.Count(p.output(), said); n != 2*vms {
		t.Errorf("said %d times by two controllers of %d VMs", n, vms)
	}
	if log := p.output(); strings.Contains(log, "Reconciler error") {
		t.Error("each try is logged")
	}
	// Without the policy VMs are moved.
	api.Kubectl(w, "delete", "validatingadmissionpolicybinding", "refusing")
	w.eventually("VMs are moved", func() bool { return len(w.migrations()) > 20 })
}

func TestAMigrationsVMCannotBeChanged(t *testing.T) {
	w := given(t)
	m := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "m"}}
	m.Spec.VMIName = "vm"
	w.make(m)
	for _, change := range []string{`{"spec":{"vmiName":"other"}}`, `{"spec":{"vmiName":null}}`, `{"spec":null}`} {
		if err := w.Patch(t.Context(), m.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(change))); err == nil || !strings.Contains(err.Error(), "cannot be changed") {
			t.Errorf("%s: %v", change, err)
		}
	}
	w.must(w.Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))))
}
