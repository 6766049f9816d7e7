package sweep

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
)

// live reads from the API server. It lists a namespace once in a sweep: a list that is younger
// than the suspects has what they were made for, if that exists. It is safe for concurrent use.
type live struct {
	client.Reader

	mu         sync.Mutex
	vmis       map[string]map[types.UID]bool
	migrations map[string][]kubevirt.VirtualMachineInstanceMigration
}

func (s *sweeper) live() *live {
	return &live{Reader: s.Live, vmis: map[string]map[types.UID]bool{}, migrations: map[string][]kubevirt.VirtualMachineInstanceMigration{}}
}

// vmi reads a VMI. It is nil if there is none, and its CRD exists.
func (l *live) vmi(ctx context.Context, key client.ObjectKey) (*kubevirt.VirtualMachineInstance, error) {
	vmi := &kubevirt.VirtualMachineInstance{}
	err := l.Get(ctx, key, vmi)
	switch {
	case err == nil:
		return vmi, nil
	case !index.Gone(err, key.Name):
		return nil, fmt.Errorf("VMI %s: %w", key, err)
	}
	if err := index.CRDExists(ctx, l.Reader); err != nil {
		return nil, fmt.Errorf("VMI %s: %w", key, err)
	}
	return nil, nil //nolint:nilnil // it does not exist
}

// nodeGone reports whether there is no Node object of a name.
func (l *live) nodeGone(ctx context.Context, name string) (bool, error) {
	err := l.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	if index.Gone(err, name) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("node %s: %w", name, err)
	}
	return false, nil
}

// vmisOf returns the UIDs of a namespace's VMIs.
func (l *live) vmisOf(ctx context.Context, namespace string) (map[types.UID]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.vmis[namespace] != nil {
		return l.vmis[namespace], nil
	}
	var all kubevirt.VirtualMachineInstanceList
	if err := l.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("VMIs: %w", err)
	}
	if err := index.CRDExists(ctx, l.Reader); err != nil {
		return nil, fmt.Errorf("VMIs: %w", err)
	}
	l.vmis[namespace] = uids(all.Items)
	return l.vmis[namespace], nil
}

// migrationsOf returns a namespace's migrations.
func (l *live) migrationsOf(ctx context.Context, namespace string) ([]kubevirt.VirtualMachineInstanceMigration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if all, ok := l.migrations[namespace]; ok {
		return all, nil
	}
	var all kubevirt.VirtualMachineInstanceMigrationList
	if err := l.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	l.migrations[namespace] = all.Items
	return all.Items, nil
}

func uids(vmis []kubevirt.VirtualMachineInstance) map[types.UID]bool {
	all := make(map[types.UID]bool, len(vmis))
	for i := range vmis {
		all[vmis[i].UID] = true
	}
	return all
}
