package taints

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
)

// cluster is a cache and an API server. It does what the controller asks for, and counts
// that.
type cluster struct {
	client.Client // methods not defined here are not called

	t        *testing.T
	nodes    []corev1.Node
	vmis     []kubevirt.VirtualMachineInstance
	pods     map[string][]corev1.Pod // by the UID of their VMI
	policy   *v1alpha1.EvacuationPolicy
	requests int // of the API server
	patches  map[types.UID]int
}

func (c *cluster) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	policy, ok := o.(*v1alpha1.EvacuationPolicy)
	if !ok {
		return fmt.Errorf("a %T is not looked at", o)
	}
	c.policy.DeepCopyInto(policy)
	return nil
}

func (c *cluster) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	switch list := list.(type) {
	case *corev1.NodeList:
		list.Items = slices.Clone(c.nodes)
	case *kubevirt.VirtualMachineInstanceList:
		list.Items = slices.Clone(c.vmis)
	case *corev1.PodList:
		uid, _ := o.FieldSelector.RequiresExactMatch("createdBy")
		list.Items = c.pods[uid]
	default:
		return fmt.Errorf("list of %T", list)
	}
	return nil
}

func (c *cluster) Status() client.SubResourceWriter { return &status{c: c} }

// status writes to the status of objects.
type status struct {
	client.SubResourceWriter

	c *cluster
}

func (s *status) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	s.c.requests++
	switch o := o.(type) {
	case *v1alpha1.EvacuationPolicy:
		s.c.policy = o.DeepCopy()
	case *kubevirt.VirtualMachineInstance:
		s.c.patches[o.UID]++
		raw, err := p.Data(o)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.c.vmis, func(v kubevirt.VirtualMachineInstance) bool { return v.UID == o.UID })
		apply(s.c.t, &s.c.vmis[i], raw)
	}
	return nil
}

// apply does the steps that the controller takes with conditions and marks.
func apply(t *testing.T, v *kubevirt.VirtualMachineInstance, raw []byte) {
	t.Helper()
	var steps []struct {
		Op, Path string
		Value    json.RawMessage
	}
	read := func(from []byte, to any) {
		if err := json.Unmarshal(from, to); err != nil {
			t.Fatalf("%s: %v", from, err)
		}
	}
	read(raw, &steps)
	have := slices.Clone(v.Status.Conditions)
	for _, s := range steps {
		at, _ := strconv.Atoi(s.Path[strings.LastIndex(s.Path, "/")+1:])
		var one kubevirt.Condition
		switch {
		case s.Op == "test":
		case s.Path == "/status/conditions":
			read(s.Value, &have)
		case s.Op == "add" && strings.HasPrefix(s.Path, "/status/conditions/"):
			read(s.Value, &one)
			have = append(have, one)
		case s.Op == "replace":
			read(s.Value, &one)
			have[at] = one
		case s.Op == "remove":
			have = slices.Delete(have, at, at+1)
		default:
			t.Fatalf("step %+v", s)
		}
	}
	v.Status.Conditions = have
}

type noEvents struct{}

func (noEvents) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// noMover is a Mover that moves no VM.
type noMover struct{ Mover }

func (noMover) Moving(context.Context, *kubevirt.VirtualMachineInstance) (string, bool, error) {
	return "", false, nil
}

func given(t *testing.T, nodes, vmis int, replacement *v1alpha1.TaintReplacement) (*cluster, *reconciler) {
	t.Helper()
	c := &cluster{t: t, pods: map[string][]corev1.Pod{}, patches: map[types.UID]int{}, policy: &v1alpha1.EvacuationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name}, Spec: v1alpha1.EvacuationPolicySpec{TaintReplacement: replacement},
	}}
	for i := range nodes {
		c.nodes = append(c.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i)},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}
	strategy := kubevirt.StrategyLiveMigrate
	for i := range vmis {
		v := kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "vms", Name: fmt.Sprintf("vm-%05d", i), UID: types.UID(fmt.Sprint(i))},
			Spec:   kubevirt.VirtualMachineInstanceSpec{EvictionStrategy: &strategy},
			Status: kubevirt.VirtualMachineInstanceStatus{Phase: kubevirt.VMIRunning, NodeName: c.nodes[i%nodes].Name, Conditions: []kubevirt.Condition{{Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionTrue}}}}
		c.vmis = append(c.vmis, v)
		c.pods[string(v.UID)] = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "vms", Name: "virt-launcher-" + v.Name, UID: v.UID},
			Spec: corev1.PodSpec{NodeName: v.Status.NodeName}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}}
	}
	defaults := settings.New(nil, func() bool { return false })
	return c, &reconciler{Client: c, Config: Config{Log: slog.New(slog.DiscardHandler), Events: noEvents{}, Settings: defaults, Meter: metrics.New(prometheus.NewRegistry()), Mover: noMover{}, Conditions: true}}
}

// taint changes a node as its watch would report it.
func (c *cluster) taint(r *reconciler, i int, keys ...string) {
	before := c.nodes[i].DeepCopy()
	c.nodes[i].Spec.Taints = nil
	for _, k := range keys {
		c.nodes[i].Spec.Taints = append(c.nodes[i].Spec.Taints, corev1.Taint{Key: k, Effect: corev1.TaintEffectNoSchedule})
	}
	r.nodeChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: &c.nodes[i]})
}

func (c *cluster) reconcile(r *reconciler) time.Duration {
	c.t.Helper()
	again, err := r.Reconcile(c.t.Context(), request()[0])
	if err != nil {
		c.t.Fatal(err)
	}
	return again.RequeueAfter
}

// A taint that was removed and added again between two reconciles counts as a new taint.
func TestAFlapThatNoLookFallsIntoStartsTheClockAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := given(t, 1, 1, &v1alpha1.TaintReplacement{Options: []v1alpha1.TaintOption{{Key: "maint", DurationInSeconds: 60}}})
		c.taint(r, 0, "maint")
		c.reconcile(r)
		<-time.After(50 * time.Second)
		c.taint(r, 0)
		c.taint(r, 0, "maint")
		at := time.Now()
		c.reconcile(r)
		if got := c.policy.Status.Taints[0].Since.Time; got.Before(at.Truncate(time.Second)) {
			t.Errorf("the taint is there since %v, it came back at %v", got, at)
		}
		<-time.After(30 * time.Second)
		c.reconcile(r)
		if c.vmis[0].ConditionIs(kubevirt.NodeTaintReplacing, kubevirt.ConditionTrue) {
			t.Error("its VM is to be replaced 30 s later: the former taint's time was counted")
		}
	})
}

// The API server takes no object of more than some 1.5 MB. If it refused the status,
// nothing would be replaced.
func TestAStatusListsTheOldestOfThousandsOfTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, r := given(t, 10_001, 0, &v1alpha1.TaintReplacement{Options: []v1alpha1.TaintOption{{Key: "maint", DurationInSeconds: 60}}})
		c.taint(r, 10_000, "maint")
		c.reconcile(r)
		<-time.After(time.Minute)
		for i := range 10_000 {
			c.taint(r, i, "maint")
		}
		c.reconcile(r)
		s := c.policy.Status
		if len(s.Taints) != listed || s.TaintsNotListed != 10_001-listed || s.Taints[listed-1].Node != "node-10000" {
			t.Errorf("%d taints listed, %d not, the last is %+v", len(s.Taints), s.TaintsNotListed, s.Taints[len(s.Taints)-1])
		}
	})
}

// Writes happen once for each condition of each VMI that it changes for, and for the
// policy's status.
func TestAWaveOfTaintedNodesInALargeCluster(t *testing.T) {
	const nodes, vmis, tainted = 5000, 20000, 100
	const affected = vmis / nodes * tainted
	synctest.Test(t, func(t *testing.T) {
		c, r := given(t, nodes, vmis, &v1alpha1.TaintReplacement{Options: []v1alpha1.TaintOption{{Key: "maint", DurationInSeconds: 60}}, TaintReplacementTimeSeconds: new(int64(3600))})
		c.reconcile(r)
		asked := c.requests
		change := func(what string, each int) {
			t.Helper()
			for range 3 { // its own writes, and any other change, cause another reconcile
				c.reconcile(r)
			}
			for uid, n := range c.patches {
				if n > each {
					t.Fatalf("%s: %d patches of VMI %s, want %d", what, n, uid, each)
				}
			}
			if len(c.patches) != affected*min(each, 1) || c.requests-asked > affected*each+each {
				t.Fatalf("%s: %d VMIs patched, want %d; %d requests", what, len(c.patches), affected, c.requests-asked)
			}
		}
		change("nothing is tainted", 0)
		for i := range tainted {
			c.taint(r, i, "maint")
		}
		change("tainted", 1)
		<-time.After(time.Minute)
		change("to be replaced", 2)
		for i := range tainted {
			c.taint(r, i)
		}
		change("the taints have gone", 3)
		if again := c.reconcile(r); again != 0 {
			t.Errorf("it looks again in %v though nothing is to come", again)
		}
	})
}
