package index

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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

// Leaving returns the VMs whose launchers are being deleted.
func Leaving(ctx context.Context, r client.Reader) (map[types.NamespacedName]bool, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.MatchingFields{leaving: yes}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("launcher pods: %w", err)
	}
	all := map[types.NamespacedName]bool{}
	for i := range pods.Items {
		all[types.NamespacedName{Namespace: pods.Items[i].Namespace, Name: pods.Items[i].Annotations[kubevirt.DomainAnnotation]}] = true
	}
	return all, nil
}
