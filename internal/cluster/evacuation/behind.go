package evacuation

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// withdrawn holds the VMs of which somebody has deleted an evacuation that had not ended.
// Whoever calls a drain off removes the mark first, but each kind has its own watch: the
// cache may show the deletion and still the mark.
type withdrawn struct {
	mu  sync.Mutex
	vms map[types.NamespacedName]bool
}

// note is a predicate: it passes all events.
func (w *withdrawn) note(e event.DeleteEvent) bool {
	if m, ok := e.Object.(*kubevirt.VirtualMachineInstanceMigration); ok && evacuation.Evacuates(m) && !m.Final() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.vms[types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}] = true
	}
	return true
}

func (w *withdrawn) has(vm types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.vms[vm]
}

func (w *withdrawn) forget(vm types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.vms, vm)
}

// behind reports whether the VMI in the cache shows a mark that is gone. It reads the VMI from
// the API server only where the migrations say that this may be: one was deleted, one has moved the
// VM away from the node of the mark, or one has failed, so that the mark is older.
func (r *reconciler) behind(ctx context.Context, v *move.VM) (bool, error) {
	key := client.ObjectKeyFromObject(v.VMI)
	before := slices.ContainsFunc(v.Migrations, func(m kubevirt.VirtualMachineInstanceMigration) bool { return evacuation.Evacuates(&m) })
	if !r.withdrawn.has(key) && !v.SeemsMoved() && !before {
		return false, nil
	}
	now := &kubevirt.VirtualMachineInstance{}
	if err := r.Live.Get(ctx, key, now); err != nil {
		return false, fmt.Errorf("VMI: %w", err)
	}
	if now.UID != v.VMI.UID || now.Node() != v.VMI.Node() || now.Marked() != v.VMI.Marked() {
		r.Log.Debug("no migration is made: the cache is behind", "vmi", key.String())
		return true, nil
	}
	r.withdrawn.forget(key)
	return false, nil
}
