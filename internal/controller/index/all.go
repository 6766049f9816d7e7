package index

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Unfinished returns all migrations that have not ended. They share their fields with the cache: callers
// must not change them.
func Unfinished(ctx context.Context, r client.Reader) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &all, client.MatchingFields{unfinished: yes}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return all.Items, nil
}

// UnfinishedOf is Unfinished for one VM. By two indexes at once the library looks at each object of
// the one for the other: at all that are unfinished.
func UnfinishedOf(ctx context.Context, r client.Reader, vm types.NamespacedName) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &all, client.InNamespace(vm.Namespace), client.MatchingFields{byVMI: vm.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("migrations of VM %s: %w", vm, err)
	}
	return slices.DeleteFunc(all.Items, func(m kubevirt.VirtualMachineInstanceMigration) bool { return m.Final() }), nil
}
