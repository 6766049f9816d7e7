//go:build !unit

package evictions

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// requests returns how often cluster-controller has asked for each right, by the audit log,
// without watches and what belongs to no namespace of VMs.
func requests(t *testing.T) map[right]int {
	t.Helper()
	f, err := os.Open(shared.audit)
	kit.Must(t, err)
	defer f.Close()
	all := map[right]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb      string
			ObjectRef *struct{ Resource, Subresource, APIGroup, Namespace string }
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.ObjectRef == nil { // a line that is being written
			continue
		}
		if o := e.ObjectRef; e.Verb != "watch" && (o.Namespace == "default" || o.Resource == "nodes") {
			all[right{e.Verb, resourceOf(o.APIGroup, o.Resource, o.Subresource)}]++
		}
	}
	kit.Must(t, lines.Err())
	return all
}

// Given VMs on a cordoned node that the replica knows. When all are evicted, then the webhook
// asks the API server for one write and at most one read for each mark, and until each VM has
// its migration and says so there are 4 requests for each. Otherwise the burst of a drain would
// take longer than the API server waits for a webhook.
func TestAnEvacuationTakesFewRequests(t *testing.T) {
	t.Cleanup(func() { tidyMigrations(t) }) // when the replica has ended
	replicas(t, 1, "--controllers=disruption-budgets,evacuation", "--leader-elect=false")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-requests"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	shared.In(t, "").Make(n, rig.NodeReady)
	all := make([]*vm, 10)
	for i := range all {
		all[i] = newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: n.Name})
	}
	for _, v := range all {
		v.budgetExists()
		kit.Eventually(t, "the launcher's annotation", func() bool {
			_, is := v.readPod().Annotations[kubevirt.RequestEvictOnlyAnnotation]
			return is
		})
	}
	before := requests(t)
	for _, v := range all {
		if a := v.evict(); !a.marks(v) {
			t.Errorf("%+v", a)
		}
	}
	for _, v := range all {
		kit.Eventually(t, "its migration, and all that is said of it", func() bool {
			c := v.get().Condition(kubevirt.EvictionRequested)
			_, leaves := v.readPod().Annotations[kubevirt.EvictionInProgressAnnotation]
			return leaves && c != nil && c.Reason == "Migrating" && v.migration() != nil &&
				strings.Contains(shared.Kubectl(t, "get", "events", "-n", v.NS, "--field-selector=reason=EvacuationStarted,involvedObject.name="+v.name), v.name)
		})
	}
	total, reads, marks, text := 0, 0, 0, ""
	for r, n := range requests(t) {
		n -= before[r]
		total += n
		switch {
		case n == 0:
			continue
		case r.verb == "get" || r.verb == "list":
			reads += n
		case r == right{"patch", "virtualmachineinstances/status.kubevirt.io"} || r == right{"patch", "virtualmachineinstances.kubevirt.io"}:
			marks += n
		}
		text += fmt.Sprintf("%d × %s\n", n, r)
	}
	t.Logf("%d VMs:\n%s", len(all), text)
	if marks > len(all) || reads > len(all) || total > 4*len(all) {
		t.Errorf("%d VMs: %d writes of VMIs, %d reads, %d requests in all:\n%s", len(all), marks, reads, total, text)
	}
}
