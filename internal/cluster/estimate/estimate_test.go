package estimate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// world is a cluster with its controller, whose lists and patches are counted.
type world struct {
	*testing.T
	client.Client

	r       *reconciler
	said    *events.FakeRecorder
	looks   int // at all VMIs
	patches int
}

// given returns a cluster with the feature gate, without nodes and policy.
func given(t *testing.T) *world {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(known), kubevirt.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, said: events.NewFakeRecorder(100)}
	w.Client = fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(&v1alpha1.EvacuationPolicy{}).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*kubevirt.VirtualMachineInstanceList); ok {
				w.looks++
			}
			return c.List(ctx, list, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			w.patches++
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	}).Build()
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &kubevirt.DeveloperConfiguration{FeatureGates: []string{evacuation.GateNoExecute}}
	w.make(kv)
	live := settings.New(w.Client, func() bool { return true })
	w.r = &reconciler{Client: w.Client, Config: Config{Log: slog.New(slog.DiscardHandler), Events: w.said, Settings: live}}
	return w
}

func (w *world) make(all ...client.Object) {
	w.Helper()
	for _, o := range all {
		if err := w.Create(w.Context(), o); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) node(name string, change ...func(*corev1.Node)) *corev1.Node {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	for _, c := range change {
		c(n)
	}
	w.make(n)
	return n
}

// vms makes VMs on a node with launchers that are held for a NoExecute taint for 150 s.
func (w *world) vms(node string, n int, change ...func(*kubevirt.VirtualMachineInstance, *corev1.Pod)) {
	w.Helper()
	set := w.r.Settings.Get()
	for i := range n {
		name := fmt.Sprintf("vm-%s-%02d", node, i)
		v := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "vms", Name: name, UID: types.UID(name)}}
		v.Spec.EvictionStrategy = new(kubevirt.StrategyLiveMigrate)
		v.Status = kubevirt.VirtualMachineInstanceStatus{Phase: kubevirt.VMIRunning, NodeName: node,
			Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}}
		g := evacuation.GraceFor(v, nil, &set)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "vms", Name: "virt-launcher-" + name,
			Labels: map[string]string{kubevirt.CreatedByLabel: name}, Annotations: g.Annotations},
			Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &g.Seconds}}
		for _, c := range change {
			c(v, p)
		}
		w.make(v, p)
	}
}

func (w *world) policy() *v1alpha1.EvacuationPolicy {
	w.Helper()
	p := &v1alpha1.EvacuationPolicy{}
	if err := w.Get(w.Context(), client.ObjectKey{Name: v1alpha1.Name}, p); err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) held(slots int32) {
	w.Helper()
	p := w.policy()
	p.Spec.ParallelHeldMigrations = &slots
	if err := w.Update(w.Context(), p); err != nil {
		w.Fatal(err)
	}
}

func (w *world) reconcile() time.Duration {
	w.Helper()
	result, err := w.r.Reconcile(w.Context(), request())
	if err != nil {
		w.Fatal(err)
	}
	return result.RequeueAfter
}

// ready compares the condition NoExecuteReady.
func (w *world) ready(status metav1.ConditionStatus, words string) {
	w.Helper()
	c := meta.FindStatusCondition(w.policy().Status.Conditions, v1alpha1.ConditionNoExecuteReady)
	if c == nil || c.Status != status || !strings.Contains(c.Message, words) {
		w.Errorf("condition %+v; want %s, %q", c, status, words)
	}
}

// events returns those since the last call.
func (w *world) events() (all []string) {
	for len(w.said.Events) > 0 {
		all = append(all, <-w.said.Events)
	}
	return all
}

// taint adds NoExecute taints to a node as its watch would report it.
func (w *world) taint(n *corev1.Node, keys ...string) (counts bool) {
	w.Helper()
	before := n.DeepCopy()
	for _, key := range keys {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
	}
	if err := w.Update(w.Context(), n); err != nil {
		w.Fatal(err)
	}
	return w.r.nodeChanged(before, n)
}

func notMigratable(v *kubevirt.VirtualMachineInstance, _ *corev1.Pod) { v.Status.Conditions = nil }

func newPolicy() *v1alpha1.EvacuationPolicy {
	return &v1alpha1.EvacuationPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name}}
}

// Given a node with 60 VMs, of which two are moved at a time. The status and an Event say who
// would not be moved in time, and which setting helps. It is written at most each 30 s, and
// only if it changes.
func TestThePolicySaysWhoWouldNotBeMovedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		w.node("n1")
		w.node("n2")
		w.vms("n1", 60)
		w.vms("n2", 1, notMigratable)
		w.make(newPolicy())
		w.reconcile()
		s := w.policy().Status.NoExecute
		if s == nil || s.InTime != 14 || s.Late != 46 || s.NotMovable != 1 || s.MigrationSeconds != 20 || s.Measured {
			t.Fatalf("status %+v", s)
		}
		want := []v1alpha1.NodeEstimate{{Name: "n1", VMIs: 60, InTime: 14, Late: 46}, {Name: "n2", VMIs: 1, NotMovable: 1, Why: "1 NotMigratable"}}
		if len(s.Nodes) != 2 || s.Nodes[0] != want[0] || s.Nodes[1] != want[1] {
			t.Errorf("nodes %+v, want %+v", s.Nodes, want)
		}
		w.ready(metav1.ConditionFalse, "2 migrations at a time, 20s each (assumed), 2m30s at most; spec.parallelHeldMigrations of 9 would do")
		if all := w.events(); len(all) != 1 || !strings.HasPrefix(all[0], "Warning TooManyVMsPerNode node n1: ") {
			t.Errorf("Events %q", all)
		}

		w.held(8)
		if again := w.reconcile(); again != atMostEach || w.looks != 1 {
			t.Errorf("a change at once: again in %v after %d looks", again, w.looks)
		}
		<-time.After(atMostEach)
		w.reconcile()
		w.ready(metav1.ConditionFalse, "56 of its 60 VMs in time and 4 not")
		<-time.After(atMostEach)
		if again := w.reconcile(); again != 0 || w.patches != 2 || len(w.events()) != 0 {
			t.Errorf("without a change: %d patches, again in %v; want 2 patches, no second Event and no look to come", w.patches, again)
		}

		w.held(9)
		<-time.After(atMostEach)
		w.reconcile()
		w.ready(metav1.ConditionTrue, "each of 60 VMs that can be moved")
		w.held(1)
		<-time.After(atMostEach)
		w.reconcile()
		if all := w.events(); len(all) != 1 {
			t.Errorf("Events when it is False again: %q", all)
		}
	})
}

// Given a node that gets a NoExecute taint while no write of the status is due. One Event on the
// node says at once who is moved, without VMs that tolerate the taint.
func TestATaintWithVMsIsOneEventOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		n := w.node("n1")
		w.node("n2")
		w.vms("n1", 16)
		w.vms("n1-a", 7, notMigratable, func(v *kubevirt.VirtualMachineInstance, p *corev1.Pod) {
			v.Status.NodeName, p.Spec.NodeName = "n1", "n1"
		})
		w.vms("n1-b", 2, func(v *kubevirt.VirtualMachineInstance, p *corev1.Pod) {
			v.Status.NodeName, p.Spec.NodeName = "n1", "n1"
			p.Spec.Tolerations = []corev1.Toleration{{Key: "broken", Operator: corev1.TolerationOpExists}}
		})
		w.make(newPolicy())
		w.reconcile()
		w.events()
		if counts := w.taint(n, "broken", corev1.TaintNodeUnreachable); counts {
			t.Error("a taint alone is no change for the status")
		}
		if again := w.reconcile(); again != atMostEach {
			t.Errorf("the status is next looked at in %v", again)
		}
		const want = "Warning NoExecuteTaint the node has got the taint broken:NoExecute: 14 of 23 VMs are expected to be moved in time, " +
			"2 not (2 migrations at a time, 20s each (assumed), 2m30s at most), 7 cannot be moved (7 NotMigratable): " +
			"vms/vm-n1-a-00, vms/vm-n1-a-01, vms/vm-n1-a-02, vms/vm-n1-a-03, vms/vm-n1-a-04, ..."
		if all := w.events(); len(all) != 1 || all[0] != want {
			t.Errorf("Events %q, want %q", all, want)
		}
		w.reconcile()
		w.taint(n)
		w.reconcile()
		if all := w.events(); len(all) != 0 || w.patches != 1 {
			t.Errorf("told again: %q, %d patches", all, w.patches)
		}
	})
}

// Given no feature gate, nobody would be moved: the status does not claim it. Given no policy,
// nothing is written or read, and a taint is an Event nevertheless.
func TestWithoutGateOrPolicyNothingIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := given(t)
		n := w.node("n1")
		w.node("n2")
		w.vms("n1", 1)
		w.reconcile()
		if w.looks != 0 {
			t.Error("looked without a policy")
		}
		w.taint(n, "broken")
		w.reconcile()
		if all := w.events(); len(all) != 1 || !strings.HasPrefix(all[0], "Normal NoExecuteTaint ") || !strings.HasSuffix(all[0], "1 of 1 VMs are expected to be moved in time") {
			t.Errorf("Events %q", all)
		}

		w.make(newPolicy())
		w.reconcile()
		w.ready(metav1.ConditionTrue, "each of 1 VMs")
		if err := w.DeleteAllOf(t.Context(), &kubevirt.KubeVirt{}, client.InNamespace("kubevirt")); err != nil {
			t.Fatal(err)
		}
		w.taint(n, "broken-too")
		w.reconcile()
		if s := w.policy().Status; s.NoExecute != nil || len(s.Conditions) != 0 || len(w.events()) != 0 {
			t.Errorf("without the gate: %+v", s)
		}
	})
}

// Given VMs that have ended, have no launcher on their node, or are on a node that is not Ready
// or not there, and no other node to go to. Those that a taint would find are counted, and none
// is said to be moved.
func TestOnlyVMsThatATaintFindsAreCounted(t *testing.T) {
	w := given(t)
	w.node("n1")
	w.node("n2", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	w.node("n3", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
	on := func(node, name string, n int, change func(*kubevirt.VirtualMachineInstance, *corev1.Pod)) {
		w.vms(name, n, func(v *kubevirt.VirtualMachineInstance, p *corev1.Pod) {
			v.Status.NodeName, p.Spec.NodeName = node, node
			change(v, p)
		})
	}
	same := func(*kubevirt.VirtualMachineInstance, *corev1.Pod) {}
	on("n1", "alone", 2, same)
	on("n1", "ended", 1, func(v *kubevirt.VirtualMachineInstance, _ *corev1.Pod) { v.Status.Phase = kubevirt.VMIFailed })
	on("n1", "elsewhere", 1, func(_ *kubevirt.VirtualMachineInstance, p *corev1.Pod) { p.Spec.NodeName = "n2" })
	on("n1", "gone", 1, func(_ *kubevirt.VirtualMachineInstance, p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	on("n3", "lost", 1, same)
	on("n4", "nowhere", 1, same)
	w.make(newPolicy())
	w.reconcile()
	s := w.policy().Status.NoExecute
	got := map[string]string{}
	for _, n := range s.Nodes {
		got[n.Name] = n.Why
	}
	if want := map[string]string{"n1": "2 NoOtherNode", "n3": "1 NodeNotReady", "n4": "1 NodeNotReady"}; !maps.Equal(got, want) || s.NotMovable != 4 || s.InTime != 0 {
		t.Errorf("%v, %d not movable, %d in time; want %v", got, s.NotMovable, s.InTime, want)
	}
}

// Given a policy whose status taint-replacement has written since it was read, then the write
// fails, and the next one keeps both. Otherwise a state of taint-replacement would be lost.
func TestAnotherWritersStatusIsKept(t *testing.T) {
	w := given(t)
	w.node("n1")
	w.make(newPolicy())
	stale := w.policy()
	other := stale.DeepCopy()
	meta.SetStatusCondition(&other.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTaintReplacement, Status: metav1.ConditionTrue, Reason: "Watching"})
	if err := w.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	now, err := w.r.look(t.Context(), w.r.Settings.Get())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.r.persist(t.Context(), stale, now); !apierrors.IsConflict(err) {
		t.Errorf("written over another's change: %v", err)
	}
	w.reconcile()
	if s := w.policy().Status; len(s.Conditions) != 2 || s.NoExecute == nil {
		t.Errorf("status %+v", s)
	}
}

// The API server takes no object that is too large, and the CRD no more than 100 nodes.
func TestAStatusListsTheWorstOfManyNodes(t *testing.T) {
	w := given(t)
	for i := range listed + 10 {
		name := fmt.Sprintf("n%03d", i)
		w.node(name)
		w.vms(name, 1)
	}
	w.vms("worst", 2, notMigratable, func(v *kubevirt.VirtualMachineInstance, p *corev1.Pod) {
		v.Status.NodeName, p.Spec.NodeName = "n109", "n109"
	})
	w.make(newPolicy())
	w.reconcile()
	s := w.policy().Status.NoExecute
	if s.InTime != listed+10 || s.NotMovable != 2 || len(s.Nodes) != listed || s.NodesNotListed != 10 || s.Nodes[0].Name != "n109" || s.Nodes[1].Name != "n000" {
		t.Errorf("%d in time, %d nodes, %d not listed, first %+v", s.InTime, len(s.Nodes), s.NodesNotListed, s.Nodes[:2])
	}
}
