package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Beside is a Source as an agent beside KubeVirt needs it. It implements hold.Cluster.
type Beside struct{ *Source }

const (
	computeContainer = "compute"
	// handlerApp is the label kubevirt.io of virt-handler's pods.
	handlerApp = "virt-handler"
)

// besideVMI is what only such an agent reads of a VMI.
type besideVMI struct{ moving, left, marked bool }

// besideOf reads KubeVirt's own fields. A migration state is left of an earlier migration until
// the next one, so it counts only if it is one away from this node.
func (s *Source) besideOf(status *kubevirt.VirtualMachineInstanceStatus) (is besideVMI) {
	vmi := kubevirt.VirtualMachineInstance{Status: *status}
	is.marked = status.EvacuationNodeName == s.node || vmi.ConditionIs(kubevirt.EvictionRequested, kubevirt.ConditionTrue)
	is.left = status.NodeName != "" && status.NodeName != s.node
	m := status.MigrationState
	if m == nil || m.SourceNode != s.node || m.TargetNode == s.node {
		return is
	}
	over := m.Completed || m.Failed || m.EndTimestamp != nil
	is.moving = !over
	is.left = is.left || m.Completed && !m.Failed
	return is
}

// besidePod is what only such an agent reads of a pod.
type besidePod struct {
	name, compute string
	hook          bool
	deletedAt     int64 // Unix seconds, 0 without a deletion
}

func besidePodOf(o *object, status *podStatus) besidePod {
	is := besidePod{name: strings.Clone(o.Name), hook: o.Annotations[evacuation.HoldForAnnotation] != ""}
	for _, c := range status.ContainerStatuses {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && c.Name == computeContainer {
			is.compute = cut(id, maxLabel+1) // runtimes have 64 hexadecimal digits
		}
	}
	if o.DeletionTimestamp != nil {
		is.deletedAt = o.DeletionTimestamp.Add(-seconds(o.DeletionGracePeriodSeconds)).Unix()
	}
	return is
}

// Launchers implements hold.Cluster.
func (b Beside) Launchers() (all []hold.Launcher) {
	b.pods.all(func(p pod) { all = append(all, p.launcher()) })
	return all
}

// Listed reports whether Launchers is complete.
func (b Beside) Listed() bool { return b.pods.synced() }

// VM implements hold.Cluster.
func (b Beside) VM(namespace, name string) hold.VM {
	vm := hold.VM{VMI: b.VMI(namespace, name)}
	if v, ok := b.vmis.get(key{namespace, name}); ok {
		vm.VMI, vm.Marked, vm.Moving, vm.Left = v.VMI, v.beside.marked, v.beside.moving, v.beside.left
	}
	return vm
}

// Launcher implements hold.Cluster.
func (b Beside) Launcher(ctx context.Context, namespace, name string) (hold.Launcher, error) {
	if b.client.Load() == nil {
		return hold.Launcher{}, errNotAsked
	}
	o, err := b.get(ctx, pods(), key{namespace, name})
	if err != nil {
		return hold.Launcher{}, err
	}
	is := b.stripPod(o, pod{})
	return is.launcher(), nil
}

// Moves implements hold.Cluster.
func (b Beside) Moves(ctx context.Context, namespace, name string) (bool, error) {
	all, err := b.listed(ctx, migrations(), namespace, labels.Set{kubevirt.VMINameLabel: name}.String(), "")
	if err != nil {
		return false, err
	}
	for i := range all {
		var m kubevirt.VirtualMachineInstanceMigration
		_, _ = json.Unmarshal(all[i].Spec, &m.Spec), json.Unmarshal(all[i].Status, &m.Status) // unreadable JSON counts as empty
		if m.Spec.VMIName == name && !m.Final() {
			return true, nil
		}
	}
	return false, nil
}

// HandlerRuns asks whether KubeVirt's virt-handler runs on this node.
func (b Beside) HandlerRuns(ctx context.Context) (bool, error) {
	node := fields.OneTermEqualSelector("spec.nodeName", b.node).String()
	all, err := b.listed(ctx, pods(), "", labels.Set{kubevirt.AppLabel: handlerApp}.String(), node)
	if err != nil {
		return false, err
	}
	for i := range all {
		var status podStatus
		_ = json.Unmarshal(all[i].Status, &status) // unreadable JSON counts as empty
		if status.Phase == "Running" && all[i].DeletionTimestamp == nil {
			return true, nil
		}
	}
	return false, nil
}

// listed asks for all objects that the selectors pick.
func (s *Source) listed(ctx context.Context, r resource, namespace, labels, fields string) ([]object, error) {
	if s.client.Load() == nil {
		return nil, errNotAsked
	}
	request := r.of(s.client.Load().Get()).NamespaceIfScoped(namespace, namespace != "").Param("labelSelector", labels)
	if fields != "" {
		request = request.Param("fieldSelector", fields)
	}
	text, err := request.MaxRetries(0).Do(ctx).Raw()
	var l *objectList
	if err == nil {
		l, err = readList(text, r.kind+"List")
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.plural, err)
	}
	return l.Items, nil
}

func (p *pod) launcher() hold.Launcher {
	l := hold.Launcher{Namespace: p.of.namespace, Name: p.beside.name, VM: p.of.name, Compute: p.beside.compute, Hook: p.beside.hook, Pod: p.Pod}
	if p.beside.deletedAt != 0 {
		l.DeletedAt = time.Unix(p.beside.deletedAt, 0).UTC()
	}
	return l
}
