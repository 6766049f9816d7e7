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

// Migrations returns those of a VMI, in any phase.
func Migrations(ctx context.Context, r client.Reader, vmi *kubevirt.VirtualMachineInstance) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	all, err := MigrationsNamed(ctx, r, client.ObjectKeyFromObject(vmi))
	return own(all, vmi), err
}

func own(all []kubevirt.VirtualMachineInstanceMigration, vmi *kubevirt.VirtualMachineInstance) []kubevirt.VirtualMachineInstanceMigration {
	return slices.DeleteFunc(all, func(m kubevirt.VirtualMachineInstanceMigration) bool { return !m.Of(vmi) })
}

// MigrationsNamed returns those of all VMIs that have, or had, a name.
func MigrationsNamed(ctx context.Context, r client.Reader, vm types.NamespacedName) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := r.List(ctx, &all, client.InNamespace(vm.Namespace), client.MatchingFields{byVMI: vm.Name}); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return all.Items, nil
}

// MigrationsNow is Migrations from the API server.
func MigrationsNow(ctx context.Context, live client.Reader, vmi *kubevirt.VirtualMachineInstance) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	all, err := MigrationsNamedNow(ctx, live, client.ObjectKeyFromObject(vmi))
	return own(all, vmi), err
}

// MigrationsNamedNow is MigrationsNamed from the API server.
func MigrationsNamedNow(ctx context.Context, live client.Reader, vm types.NamespacedName) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := live.List(ctx, &all, client.InNamespace(vm.Namespace)); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(m kubevirt.VirtualMachineInstanceMigration) bool { return m.Spec.VMIName != vm.Name }), nil
}
