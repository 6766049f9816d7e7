package plugin

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
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
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

// Gate is a feature gate of the KubeVirt object that vmgrace does not have.
type Gate struct {
	Name  string `json:"name"`
	Meant string `json:"meant,omitempty"` // the gate that is spelled like it
	text  string
}

// unknownGates returns the feature gates that do not exist. Where KubeVirt runs, those that are
// spelled like none of vmgrace's are KubeVirt's. Without the right to read the settings there are
// none.
func (s *session) unknownGates(ctx context.Context) (some []Gate) {
	set, err := drain.ReadSettings(ctx, s.live)
	if err != nil {
		return nil
	}
	_, err = s.live.RESTMapper().RESTMapping(schema.GroupKind{Group: kubevirt.Group, Kind: "VirtualMachine"})
	for _, g := range set.UnknownGates() {
		if g.Meant != "" || err != nil {
			some = append(some, Gate{Name: g.Name, Meant: g.Meant, text: g.Message()})
		}
	}
	return some
}

func (s *session) warnOf(gates []Gate) {
	for _, g := range gates {
		s.warn("KubeVirt settings: %s", g.text)
	}
}
