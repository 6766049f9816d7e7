package cli

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/evacuation"
)

// noKind explains the error of a cluster without KubeVirt's kinds.
func noKind(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the cluster does not know %s: apply deploy/crds, or install KubeVirt", kubevirt.CRD)
	}
	return err
}

// kind is a kind of objects that status reads. Without the right to read an optional kind it
// shows less.
type kind struct {
	object   client.Object
	list     client.ObjectList
	what     string
	optional bool
	options  []client.ListOption
}

// lists are what gather reads.
type lists struct {
	vmis       kubevirt.VirtualMachineInstanceList
	launchers  corev1.PodList
	migrations kubevirt.VirtualMachineInstanceMigrationList
}

func (l *lists) kinds() []kind {
	launchers := client.MatchingLabels{kubevirt.AppLabel: kubevirt.LauncherApp}
	return []kind{
		{&kubevirt.VirtualMachineInstance{}, &l.vmis, "VMIs", false, nil},
		{&corev1.Pod{}, &l.launchers, "launcher pods", true, []client.ListOption{launchers}},
		{&kubevirt.VirtualMachineInstanceMigration{}, &l.migrations, "migrations", true, nil},
	}
}

// gather reads the objects of a namespace, of all for "". warn is told what may not be read.
func gather(ctx context.Context, from client.Reader, namespace string, warn func(format string, args ...any)) (*Objects, error) {
	l := &lists{}
	for _, k := range l.kinds() {
		err := from.List(ctx, k.list, append(k.options, client.InNamespace(namespace))...)
		var none *cache.ErrResourceNotCached // of the watch: warned about before
		switch {
		case err == nil, errors.As(err, &none):
		case k.optional && (apierrors.IsForbidden(err) || meta.IsNoMatchError(err)):
			warn("%s are not shown: %v", k.what, err)
		default:
			return nil, fmt.Errorf("list %s: %w", k.what, noKind(err))
		}
	}
	return &Objects{VMIs: l.vmis.Items, Launchers: l.launchers.Items, Migrations: l.migrations.Items}, nil
}

// warnOfGates warns of feature gates that do not exist: they have no effect. KubeVirt itself
// has more of them. Without the right to read the settings nothing is said.
func (s *session) warnOfGates(ctx context.Context) {
	if _, err := s.live.RESTMapper().RESTMapping(schema.GroupKind{Group: kubevirt.Group, Kind: "VirtualMachine"}); err == nil {
		return
	}
	all := &kubevirt.KubeVirtList{}
	if s.live.List(ctx, all) != nil {
		return
	}
	counts, _ := evacuation.Oldest(all.Items)
	set, _ := evacuation.Defaults().WithKubeVirt(counts)
	for _, message := range set.UnknownGates() {
		s.warn("KubeVirt settings: %s", message)
	}
}
