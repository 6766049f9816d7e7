//go:build !unit

package evictions

import (
	"fmt"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// lag is how far caches are behind in these tests.
const lag = 5 * time.Second

// cached waits until the replica's cache has the VM and its launcher pod: the evacuation
// controller removes an annotation that only VMs have that are to leave.
func (v *vm) cached() {
	v.Helper()
	v.changePod(`{"metadata":{"annotations":{"` + kubevirt.EvictionInProgressAnnotation + `":"kubevirt"}}}`)
	kit.Eventually(v, "the cache has the VM", func() bool {
		_, there := v.readPod().Annotations[kubevirt.EvictionInProgressAnnotation]
		return there == v.get().Marked()
	})
}

// Given a replica whose cache is 5 s behind, and shows VMs that an eviction may stop or that it
// would mark. When a VM changes and its launcher is evicted, then the answer is that for the VM
// as it is. Otherwise an eviction would stop a VM that is to move, or mark one that has left.
func TestACacheThatIsBehindAllowsAndMarksNothingWrong(t *testing.T) {
	w := newWire(t)
	replicasVia(t, 1, w.kubeconfig, "--controllers=evacuation", "--leader-elect=false")
	marked := vm{strategy: "LiveMigrate", migratable: true, mark: "node-behind"}
	cases := map[string]struct {
		given  vm
		change func(*vm)
		allows bool // and marks nothing; otherwise the answer is that of a mark
	}{
		"it may be stopped no more": {vm{strategy: "None", migratable: true}, func(v *vm) { v.Change(v.get(), `{"spec":{"evictionStrategy":"LiveMigrate"}}`) }, false},
		"it can move by now":        {vm{strategy: "LiveMigrateIfPossible"}, func(v *vm) { v.status(`{"conditions":[{"type":"LiveMigratable","status":"True"}]}`) }, false},
		"it is marked no more":      {marked, func(v *vm) { v.status(`{"evacuationNodeName":null}`) }, false},
		"its budget has gone":       {marked, func(v *vm) { kit.Must(v, v.Delete(v.Context(), v.readBudget())) }, false},
		"it is ready no more":       {marked, func(v *vm) { v.podStatus(`{"conditions":[{"type":"Ready","status":"False"}]}`) }, false},
		"it has left":               {vm{strategy: "LiveMigrate", migratable: true}, func(v *vm) { v.status(`{"nodeName":"node-b"}`) }, true},
		"it is another one":         {vm{strategy: "LiveMigrate", migratable: true}, (*vm).anew, true},
		"it may be stopped by now":  {vm{strategy: "LiveMigrate", migratable: true}, func(v *vm) { v.Change(v.get(), `{"spec":{"evictionStrategy":"None"}}`) }, true},
	}
	vms := map[string]*vm{}
	for name, c := range cases {
		c.given.node = "node-behind" // which is not there: nothing is migrated
		vms[name] = newVM(t, c.given)
		if c.given.mark != "" {
			vms[name].budget()
		}
	}
	for _, v := range vms {
		v.cached()
	}
	w.late.By(lag, "")
	for name, c := range cases {
		v := vms[name]
		c.change(v)
		a := v.evict()
		now := v.get()
		switch {
		case c.allows && (a.code != 0 || now.Status.EvacuationNodeName != ""):
			t.Errorf("%s: %+v, marked for %q", name, a, now.Status.EvacuationNodeName)
		case !c.allows && (!a.marks(v) || now.Status.EvacuationNodeName != "node-behind" || !v.podThere()):
			t.Errorf("%s: %+v, marked for %q", name, a, now.Status.EvacuationNodeName)
		}
	}
}

// Given a replica whose cache is 5 s behind, and shows a cluster whose VMs may be stopped. When the
// cluster's evictionStrategy becomes LiveMigrate and a launcher is evicted at once, then the VM is to
// move, and one that cannot move stays. Otherwise the first evictions after
// that change would stop guests.
func TestSettingsThatAreBehindAllowNothing(t *testing.T) {
	w := newWire(t)
	r := replicasVia(t, 1, w.kubeconfig)
	kv := &kubevirt.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevirt"}}
	shared.In(t, "").Make(kv, "")
	moves, stays := newVM(t, vm{migratable: true}), newVM(t, vm{})
	for _, v := range []*vm{moves, stays} {
		if a := v.evict(func(e *policyv1.Eviction) { e.DeleteOptions.DryRun = []string{metav1.DryRunAll} }); a.code != 0 {
			t.Fatalf("before: %+v", a)
		}
	}
	w.late.By(lag, "")
	shared.In(t, "").Change(kv, `{"spec":{"configuration":{"evictionStrategy":"LiveMigrate"}}}`)
	a, b := moves.evict(), stays.evict()
	if strings.Contains(r[0].Log(), "EvictionStrategy:LiveMigrate") {
		t.Fatal("the replica's cache is not behind")
	}
	if !a.marks(moves) || moves.get().Status.EvacuationNodeName != "node-a" {
		t.Errorf("the VM that can move: %+v", a)
	}
	if b.code != 429 || !strings.Contains(b.text, "not live-migratable") || !stays.podThere() {
		t.Errorf("the VM that cannot move: %+v", b)
	}
}

// Given the leader's cache of VMIs that is 5 s behind, which shows marks that have gone: a VM has
// moved, and for another the drain was called off. When the leader sees the end of their
// migrations, then it makes no second one. Otherwise a VM would be moved that nobody wants
// to move.
func TestACacheThatIsBehindMakesNoSecondMigration(t *testing.T) {
	t.Cleanup(func() { tidyMigrations(t) }) // when the replica has ended
	w := newWire(t)
	r := replicasVia(t, 1, w.kubeconfig, "--controllers=evacuation", "--leader-elect=false")[0]
	newNode(t, "node-behind")
	moved, kept := newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-behind"}), newVM(t, vm{strategy: "LiveMigrate", migratable: true, node: "node-behind"})
	migrations := map[*vm]*kubevirt.VirtualMachineInstanceMigration{}
	for _, v := range []*vm{moved, kept} {
		if a := v.evict(); !a.marks(v) {
			t.Fatalf("%+v", a)
		}
		kit.Eventually(t, "its migration", func() bool { migrations[v] = v.migration(); return migrations[v] != nil })
		kit.Eventually(t, "the cache has its mark and its migration", func() bool {
			_, is := v.readPod().Annotations[kubevirt.EvictionInProgressAnnotation]
			return is
		})
	}
	w.late.By(lag, "/virtualmachineinstances")
	moved.status(`{"evacuationNodeName":null,"nodeName":"node-b"}`)
	moved.SetStatus(migrations[moved], fmt.Sprintf(`{"phase":"Succeeded","migrationState":{"sourceNode":"node-behind","endTimestamp":%q}}`, time.Now().UTC().Format(time.RFC3339)))
	kept.status(`{"evacuationNodeName":null}`)
	kit.Must(t, shared.Delete(t.Context(), migrations[kept]))
	for _, v := range []*vm{moved, kept} {
		kit.Eventually(t, "the leader sees that the mark has gone", func() bool {
			now := v.get()
			return now.Condition(kubevirt.EvictionRequested) == nil && now.Status.Mark == nil
		})
		made := `"migration made","vmi":"` + v.NS + "/" + v.name + `"`
		if n := strings.Count(r.Log(), made); n != 1 {
			t.Errorf("%d migrations were made, want 1", n)
		}
	}
	if n := strings.Count(r.Log(), "no migration is made: the cache is behind"); n < 2 {
		t.Errorf("the cache was behind %d times, want it for each VM", n)
	}
}

// migration returns the VM's only migration, nil if it has none.
func (v *vm) migration() *kubevirt.VirtualMachineInstanceMigration {
	v.Helper()
	var found *kubevirt.VirtualMachineInstanceMigration
	for _, m := range v.Migrations() {
		if m.Spec.VMIName == v.name {
			found = &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}}
		}
	}
	return found
}

// tidyMigrations deletes all migrations, as Kubernetes does with those of VMIs that are gone: no
// garbage collector runs here.
func tidyMigrations(t *testing.T) {
	t.Helper()
	kit.Must(t, shared.DeleteAllOf(rig.After(t), &kubevirt.VirtualMachineInstanceMigration{}, client.InNamespace("default")))
}
