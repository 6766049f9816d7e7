//go:build !unit

package evictions

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

const byBudget = "Cannot evict pod as it would violate the pod's disruption budget."

// Given an eviction for which the webhook has read the VM. When the VM changes before its
// mark is written, then the webhook reads it again and answers for the VM as it is.
// Otherwise it would mark a VM that has already left the node.
func TestAVMThatChangesBeforeItsMarkIsLookedAtAgain(t *testing.T) {
	w := newWire(t)
	replicasVia(t, 1, w.kubeconfig)
	for name, change := range map[string]func(*vm){
		"it moves":      func(v *vm) { v.status(`{"nodeName":"node-b"}`) },
		"it is deleted": (*vm).delete,
		"it is made anew": func(v *vm) {
			v.anew()
			v.status(`{"phase":"Running","nodeName":"node-a","conditions":[{"type":"LiveMigratable","status":"True"}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
			w.once(func() { change(v) })
			// The evicted pod no longer belongs to a VM on that node.
			if a := v.evict(); a.code != 0 {
				t.Errorf("%+v, want it to be allowed", a)
			}
			if vmi := rig.Find[kubevirt.VirtualMachineInstance](v.Space, v.name); vmi != nil && vmi.Status.EvacuationNodeName != "" {
				t.Errorf("marked for %q", vmi.Status.EvacuationNodeName)
			}
		})
	}
	t.Run("somebody marks it", func(t *testing.T) {
		v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
		v.budget()
		w.once(func() { v.status(`{"evacuationNodeName":"node-a"}`) })
		if a := v.evict(); a.code != 429 || !strings.Contains(a.text, byBudget) {
			t.Errorf("%+v, want the budget's answer", a)
		}
	})
}

// Given a VM that an eviction may stop, and an API server that answers the read of its VMI with
// an error, or with a 404 that is not about this VMI. When the launcher pod is evicted, then
// the eviction is refused: what the cache shows may be out of date, and the pod is an orphan
// only if the API server says that this very VMI is not found. Otherwise a fault would stop a
// running VM.
func TestAVMThatCannotBeReadIsNotEvicted(t *testing.T) {
	w := newWire(t)
	all := replicasVia(t, 1, w.kubeconfig)
	v, moves := newVM(t, vm{strategy: "None", migratable: true}), newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	for name, answer := range map[string]http.HandlerFunc{
		"an error": func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, "etcd is away", http.StatusInternalServerError)
		},
		"a proxy's 404": http.NotFound,
		"another's 404": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusNotFound)
			_, _ = rw.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"other","group":"kubevirt.io","kind":"virtualmachineinstances"}}`))
		},
	} {
		w.reads.Store(&answer)
		before := counted(all, "vmgrace_evictions_total", `verdict="failed"`)
		if a := v.evict(); a.code != 429 || !strings.Contains(a.text, "kubevirt failed getting the vmi: ") {
			t.Errorf("%s: %+v", name, a)
		}
		if n := counted(all, "vmgrace_evictions_total", `verdict="failed"`) - before; n != 1 {
			t.Errorf("%s: counted %d times as failed", name, n)
		}
		if a := moves.evict(); a.code != 429 {
			t.Errorf("%s: a VM that is to move: %+v", name, a)
		}
	}
	w.reads.Store(nil)
	if a := v.evict(); a.code != 0 {
		t.Errorf("afterwards: %+v", a)
	}
}

// Given an API server that refuses each mark. When the launcher pod is evicted, then the
// eviction is refused with the reason after at most two tries. Such a refusal does not mean
// that the VM has changed, whatever its code. Otherwise the client would wait for tries
// that cannot succeed.
func TestAVMThatCannotBeMarkedIsNotEvicted(t *testing.T) {
	w := newWire(t)
	replicasVia(t, 1, w.kubeconfig)
	for code, reason := range map[int]string{
		http.StatusUnprocessableEntity: "Invalid", http.StatusForbidden: "Forbidden", http.StatusInternalServerError: "InternalError",
	} {
		v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
		var tries atomic.Int64
		refuses := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			tries.Add(1)
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(code)
			_, _ = fmt.Fprintf(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"a policy refuses it"}`, code, reason)
		})
		w.marks.Store(&refuses)
		if a := v.evict(); a.code != 429 || !strings.Contains(a.text, "kubevirt failed marking the vmi for eviction: ") || !strings.Contains(a.text, "a policy refuses it") {
			t.Errorf("%d: %+v", code, a)
		}
		if n := tries.Load(); n > 2 || v.marked() {
			t.Errorf("%d: tried %d times, marked: %v", code, n, v.marked())
		}
		w.marks.Store(nil)
		if a := v.evict(); a.code != 429 || !v.marked() {
			t.Errorf("afterwards: %+v, marked: %v", a, v.marked())
		}
	}
}

func (v *vm) delete() { v.Helper(); kit.Must(v, v.Delete(v.Context(), v.get())) }

// anew deletes the VMI and makes another one with its name.
func (v *vm) anew() {
	v.Helper()
	v.delete()
	v.Make(v.VMI(v.name, v.node, kubevirt.StrategyLiveMigrate), "")
}

// Given a replica that is killed before the mark is written. Then nothing of the mark is
// there. When the launcher pod is evicted again, then another replica marks the VM and explains
// this eviction. Otherwise the VM would stay on its node, or its mark would name the
// descheduler for an eviction of kubectl's.
func TestAReplicaThatDiesInTheMiddleOfAMarkLeavesNone(t *testing.T) {
	w := newWire(t)
	r := replicasVia(t, 1, w.kubeconfig)[0]
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget()
	w.atMark.Store(new(func() bool { r.Kill(); return false }))
	if a := v.evict(func(e *policyv1.Eviction) {
		e.Annotations = map[string]string{"requested-by": "sigs.k8s.io/descheduler"}
	}); a.code != 429 || !strings.Contains(a.text, byBudget) {
		t.Errorf("%+v, want the budget's answer", a)
	}
	half := v.get()
	if half.Status.Mark != nil || half.Status.EvacuationNodeName != "" || half.Condition(kubevirt.EvictionRequested) != nil || len(half.Annotations) > 0 {
		t.Fatalf("a part of the mark is written: %+v", half)
	}
	replicas(t, 1)
	if a := v.evict(); a.code != 429 || !strings.Contains(a.text, "Eviction triggered evacuation") {
		t.Errorf("%+v, want it to be marked now", a)
	}
	now := v.get()
	if now.Status.EvacuationNodeName != "node-a" || evacuation.ExplanationOf(now) != (evacuation.Explanation{Cause: "Eviction"}) || len(now.Annotations) > 0 {
		t.Errorf("marked for %q, explained as %+v, %v: the second eviction was nobody's but kubectl's", now.Status.EvacuationNodeName, now.Status.Mark, now.Annotations)
	}
}

// Given two replicas that two API servers ask about one VM. When both are about to write
// the mark, then one of them marks the VM, and the other leaves the answer to the budget.
// Otherwise both would report that they marked it.
func TestTwoReplicasThatMarkAtOnceMakeOneMark(t *testing.T) {
	w := newWire(t)
	all := replicasVia(t, 2, w.kubeconfig)
	v := newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	v.budget()
	// Each write of a mark waits for the other one.
	met := make(chan struct{})
	var arrived atomic.Int32
	w.atMark.Store(new(func() bool {
		if arrived.Add(1) == 2 {
			close(met)
		}
		select {
		case <-met:
		case <-time.After(5 * time.Second):
			t.Error("the two did not meet")
		}
		return true
	}))
	var answers [2]*admissionv1.AdmissionResponse
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = all[i].review(t, v, evictionPath(t)) })
	}
	group.Wait()
	marks, left := 0, 0
	for _, a := range answers {
		switch {
		case a == nil:
		case a.Allowed:
			left++
		case strings.Contains(a.Result.Message, "Eviction triggered evacuation"):
			marks++
		}
	}
	if marks != 1 || left != 1 || v.get().Status.EvacuationNodeName != "node-a" {
		t.Errorf("%d say that they marked it, %d leave it to the budget; it is marked for %q", marks, left, v.get().Status.EvacuationNodeName)
	}
}

// evictionPath returns the path at which the API server asks about evictions.
func evictionPath(t *testing.T) string {
	t.Helper()
	config := rig.Read[admissionregistrationv1.ValidatingWebhookConfiguration](shared.In(t, ""), "vmgrace-cluster-controller")
	u, err := url.Parse(*config.Webhooks[0].ClientConfig.URL)
	kit.Must(t, err)
	return u.Path
}

// Given a client that reaches the webhook's port and does not know the path. When it asks
// about evictions, then no VM is marked, and the answers tell nothing about a VM. Otherwise
// everybody in the cluster's network could move VMs.
func TestAForgedReviewMarksNothing(t *testing.T) {
	r := replicas(t, 1)[0]
	path := evictionPath(t)
	marked, free := newVM(t, vm{strategy: "LiveMigrate", migratable: true}), newVM(t, vm{strategy: "None"})
	for _, wrong := range []string{"/evict-pod", "/evict-pod/", "/evict-pod/" + strings.Repeat("A", 26), path[:len(path)-1], path + "A", path + "/", "/evict-pod" + strings.ToUpper(strings.TrimPrefix(path, "/evict-pod"))} {
		of, other := r.review(t, marked, wrong), r.review(t, free, wrong)
		if of != nil && (of.Allowed || of.Result.Code != http.StatusTooManyRequests) || !reflect.DeepEqual(of, other) {
			t.Errorf("%s: %+v, %+v", wrong, of, other)
		}
	}
	if now := marked.get(); now.Status.EvacuationNodeName != "" || len(now.Annotations) > 0 {
		t.Errorf("marked for %q, annotations %v", now.Status.EvacuationNodeName, now.Annotations)
	}

	// When an operator applies the manifest again, then the path's key goes and comes back.
	config := rig.Read[admissionregistrationv1.ValidatingWebhookConfiguration](shared.In(t, ""), "vmgrace-cluster-controller")
	plain := strings.TrimSuffix(*config.Webhooks[0].ClientConfig.URL, strings.TrimPrefix(path, "/evict-pod"))
	config.Webhooks[0].ClientConfig.URL = &plain
	kit.Must(t, shared.Update(t.Context(), config))
	kit.Eventually(t, "the path has its key again", func() bool { return evictionPath(t) == path })
	kit.Eventually(t, "an eviction marks", func() bool {
		a := marked.evict()
		return a.code == http.StatusTooManyRequests && strings.Contains(a.text, "Eviction triggered evacuation")
	})
}

// review asks this replica as an API server does. It returns nil if the path has no webhook.
func (r *replica) review(t *testing.T, v *vm, path string) *admissionv1.AdmissionResponse {
	t.Helper()
	text := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","name":%q,"namespace":%q,"operation":"CREATE",
		"kind":{"group":"policy","version":"v1","kind":"Eviction"},"resource":{"group":"","version":"v1","resource":"pods"},"subResource":"eviction",
		"object":{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%[1]q,"namespace":%[2]q}}}}`, v.launcher(), v.NS)
	https := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := https.Post("https://127.0.0.1:"+r.webhook+path, "application/json", strings.NewReader(text))
	if err != nil {
		t.Error(err)
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil
	}
	var said admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		t.Error(err)
	}
	return said.Response
}

// A drain of the controller's own node evicts VMs and the controller at once. If the
// controller did not answer until its end, those evictions would fail open.
func TestAReplicaThatIsToldToEndAnswersAllThatItIsAsked(t *testing.T) {
	w := newWire(t)
	r := replicasVia(t, 1, w.kubeconfig)[0]
	before, after := newVM(t, vm{strategy: "LiveMigrate", migratable: true}), newVM(t, vm{strategy: "LiveMigrate", migratable: true})
	before.budget()
	after.budget()
	// Given an eviction whose mark is being written.
	writing, goesOn := make(chan struct{}), make(chan struct{})
	w.once(func() { close(writing); <-goesOn })
	answered := make(chan answer, 1)
	go func() { answered <- before.evict() }()
	<-writing
	// When the replica is told to end,
	kit.Must(t, r.Signal(syscall.SIGTERM))
	// then it answers an eviction that comes before the API server knows of its end,
	const mark = "Eviction triggered evacuation"
	if a := after.evict(); a.code != 429 || !strings.Contains(a.text, mark) {
		t.Errorf("asked after the signal: %+v", a)
	}
	// and it answers the first one, however long that takes within its bound.
	kit.Eventually(t, "the replica takes no more", func() bool { return strings.Contains(r.Log(), "Shutting down webhook server") })
	close(goesOn)
	if a := <-answered; a.code != 429 || !strings.Contains(a.text, mark) {
		t.Errorf("asked before the signal: %+v", a)
	}
	if code, ended := r.Exited(soon); !ended || code != 0 {
		t.Errorf("it has ended: %v, with status %d", ended, code)
	}
}
