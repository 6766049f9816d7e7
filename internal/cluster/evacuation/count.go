package evacuation

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/cluster/settings"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

// countWithin bounds a read of a cache that has not started yet.
const countWithin = 2 * time.Second

// Count counts VMs and migrations in the cache, in each replica. It returns false while
// the settings or the cache are not available.
func Count(cache client.Reader, live *settings.Live) (metrics.VMs, bool) {
	if live.Known() != nil {
		return metrics.VMs{}, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), countWithin)
	defer cancel()
	var vmis kubevirt.VirtualMachineInstanceList
	var migrations kubevirt.VirtualMachineInstanceMigrationList
	if cache.List(ctx, &vmis, client.UnsafeDisableDeepCopy) != nil || cache.List(ctx, &migrations, client.UnsafeDisableDeepCopy) != nil {
		return metrics.VMs{}, false
	}
	n := metrics.VMs{Evacuations: map[string]int{}}
	for _, phase := range kubevirt.MigrationPhases() {
		n.Evacuations[string(phase)] = 0
	}
	fallback := live.Get().EvictionStrategy
	there := map[string]bool{}
	for i := range vmis.Items {
		there[string(vmis.Items[i].UID)] = true
		if evacuation.BlocksDrains(&vmis.Items[i], fallback) {
			n.NotEvictable++
		}
		if c := vmis.Items[i].Condition(kubevirt.EvictionRequested); c != nil && c.Status == kubevirt.ConditionTrue && c.Reason == evacuation.ReasonStuck {
			n.Stuck++
		}
		if vmis.Items[i].ConditionIs(kubevirt.MigrationUndecided, kubevirt.ConditionTrue) {
			n.Undecided++
		}
	}
	for i := range migrations.Items {
		m := &migrations.Items[i]
		if migration.WithoutVM(m, there) {
			n.Undecided++
		}
		if evacuation.Evacuates(m) {
			n.Evacuations[string(evacuation.PhaseOf(m))]++
		}
	}
	return n, true
}
