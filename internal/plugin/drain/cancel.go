package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// cancelMarks removes the evacuation marks of a node's VMs, and deletes their pending
// migrations. A running migration continues. A VM whose launcher pod is terminating, or
// with the strategy External, keeps its mark.
func (c *command) cancelMarks(ctx context.Context, name string) error {
	vmis := &kubevirt.VirtualMachineInstanceList{}
	if err := c.live.List(ctx, vmis); err != nil {
		return fmt.Errorf("VMs of node %s: %w", name, err)
	}
	pods := &corev1.PodList{}
	if err := c.live.List(ctx, pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return fmt.Errorf("pods of node %s: %w", name, err)
	}
	set, err := ReadSettings(ctx, c.live)
	if err != nil {
		return err
	}
	terminating := map[string]bool{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp != nil && !Ended(p) {
			terminating[p.Labels[kubevirt.CreatedByLabel]] = true
		}
	}
	var removed int
	for i := range vmis.Items {
		v := &vmis.Items[i]
		strategy, _ := evacuation.StrategyOf(v, set.EvictionStrategy)
		switch {
		case !v.Marked() || v.Node() != name:
		case strategy == kubevirt.StrategyExternal:
			c.show.warn(name, fmt.Sprintf("VMI %s/%s keeps its mark: its evictionStrategy is External", v.Namespace, v.Name))
		case terminating[string(v.UID)]:
			c.show.warn(name, fmt.Sprintf("VMI %s/%s keeps its mark: its launcher pod is terminating", v.Namespace, v.Name))
		default:
			failed := c.unmark(ctx, v)
			if failed == nil {
				removed++
				c.show.node(name, "unmarked", fmt.Sprintf("VMI %s/%s stays", v.Namespace, v.Name))
			}
			err = errors.Join(err, failed)
		}
	}
	if err == nil {
		c.show.node(name, "cancelled", fmt.Sprintf("%d marks taken back; cordoned nodes stay so until kubectl uncordon", removed))
	}
	return err
}

// CancelVM removes the evacuation mark of one VM and deletes its migrations that have not
// ended: the VM stays where it is.
func CancelVM(ctx context.Context, cfg *rest.Config, out Output, namespace, name string) error {
	c, err := newCommand(&Options{DryRun: dryRunNone}, cfg, newPrinter(out, outputText))
	if err != nil {
		return err
	}
	return Interrupted(ctx, c.cancelVM(ctx, namespace, name, out))
}

func (c *command) cancelVM(ctx context.Context, namespace, name string, out Output) error {
	v := &kubevirt.VirtualMachineInstance{}
	if err := c.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, v); err != nil {
		return fmt.Errorf("VMI %s/%s: %w", namespace, name, err)
	}
	pods := &corev1.PodList{}
	if err := c.live.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{kubevirt.CreatedByLabel: string(v.UID)}); err != nil {
		return fmt.Errorf("launcher pods of VMI %s/%s: %w", namespace, name, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp != nil && !Ended(p) && p.Spec.NodeName == v.Node() {
			return fmt.Errorf("VMI %s/%s: its launcher pod %s is terminating: without the migration the VM would be shut down", namespace, name, p.Name)
		}
	}
	set, err := ReadSettings(ctx, c.live)
	if err != nil {
		return err
	}
	var did int
	switch strategy, _ := evacuation.StrategyOf(v, set.EvictionStrategy); {
	case !v.Marked():
	case strategy == kubevirt.StrategyExternal:
		WriteLine(out.Err, "Warning: VMI %s/%s keeps its mark: its evictionStrategy is External", namespace, name)
	default:
		if err := c.unmark(ctx, v); err != nil {
			return err
		}
		did++
		WriteLine(out.Out, "vmi/%s mark removed", name)
	}
	ended, err := c.cancelMigrations(ctx, v, out)
	if err == nil && did+ended == 0 {
		WriteLine(out.Out, "vmi/%s is not marked and has no migration", name)
	}
	return err
}

// cancelMigrations deletes the migrations of a VM that have not ended, and returns how many
// there were.
func (c *command) cancelMigrations(ctx context.Context, v *kubevirt.VirtualMachineInstance, out Output) (did int, err error) {
	namespace, name := v.Namespace, v.Name
	migrations := &kubevirt.VirtualMachineInstanceMigrationList{}
	if err := c.live.List(ctx, migrations, client.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("migrations of VMI %s/%s: %w", namespace, name, err)
	}
	for i := range migrations.Items {
		m := &migrations.Items[i]
		if m.Spec.VMIName != name || !m.Of(v) || m.Final() || m.DeletionTimestamp != nil {
			continue
		}
		if err := c.live.Delete(ctx, m, client.Preconditions{UID: &m.UID}); client.IgnoreNotFound(err) != nil {
			return did, fmt.Errorf("migration %s/%s: %w", namespace, m.Name, err)
		}
		did++
		WriteLine(out.Out, "migration/%s cancelled in phase %s", m.Name, evacuation.PhaseOf(m))
	}
	return did, nil
}

// ReadSettings reads the cluster's settings, but for those of the EvacuationPolicy.
func ReadSettings(ctx context.Context, from client.Reader) (evacuation.Settings, error) {
	all := &kubevirt.KubeVirtList{}
	if err := from.List(ctx, all); err != nil {
		return evacuation.Settings{}, fmt.Errorf("settings of the KubeVirt object: %w", err)
	}
	counts, _ := evacuation.Oldest(all.Items)
	set, _ := evacuation.Defaults().WithKubeVirt(counts)
	return set, nil
}

// unmark removes the mark of one VMI, if the VMI has not changed since it was read, then
// deletes the VMI's pending evacuations.
func (c *command) unmark(ctx context.Context, v *kubevirt.VirtualMachineInstance) error {
	if c.DryRun == dryRunClient {
		return nil
	}
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": v.UID, "resourceVersion": v.ResourceVersion},
		"status":   map[string]any{"evacuationNodeName": nil, "vmgraceMark": nil},
	})
	if err != nil {
		return err
	}
	err = c.live.Status().Patch(ctx, v.DeepCopy(), client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) {
		err = c.cancelByKubeVirt(ctx, v, err)
	}
	if err != nil {
		return fmt.Errorf("mark of VMI %s/%s: %w", v.Namespace, v.Name, err)
	}
	migrations := &kubevirt.VirtualMachineInstanceMigrationList{}
	if err := c.live.List(ctx, migrations, client.InNamespace(v.Namespace)); err != nil {
		return fmt.Errorf("migrations of VMI %s/%s: %w", v.Namespace, v.Name, err)
	}
	unmarked := v.DeepCopy()
	unmarked.Status.EvacuationNodeName = ""
	own := slices.DeleteFunc(migrations.Items, func(m kubevirt.VirtualMachineInstanceMigration) bool { return m.Spec.VMIName != v.Name || !m.Of(v) })
	for _, m := range evacuation.Withdrawn(evacuation.Evacuee{VMI: unmarked, Migrations: own}) {
		// The precondition fails for a migration that has started since.
		unchanged := client.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion}
		if err := c.live.Delete(ctx, &m, unchanged); client.IgnoreNotFound(err) != nil { // gone: the controller was quicker
			return fmt.Errorf("migration %s/%s: %w", m.Namespace, m.Name, err)
		}
	}
	return nil
}

// cancelByKubeVirt removes a mark by KubeVirt's own request: its VMIs have no status
// subresource, which is what notFound says, and only KubeVirt may write their status.
func (c *command) cancelByKubeVirt(ctx context.Context, v *kubevirt.VirtualMachineInstance, notFound error) error {
	body := map[string]any{"evacuationNodeName": v.Status.EvacuationNodeName}
	if c.DryRun != dryRunNone {
		body["dryRun"] = []string{metav1.DryRunAll}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	cfg := callConfig(c.cfg)
	cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	kubeVirt, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return err
	}
	err = kubeVirt.Put().AbsPath("/apis/subresources.kubevirt.io/v1/namespaces", v.Namespace, "virtualmachineinstances", v.Name, "evacuate/cancel").
		SetHeader("Content-Type", "application/json").Body(raw).Do(ctx).Error()
	if apierrors.IsNotFound(err) && apierrors.IsNotFound(c.live.Get(ctx, client.ObjectKeyFromObject(v), &kubevirt.VirtualMachineInstance{})) {
		return nil // it is gone, and its mark
	}
	if apierrors.IsNotFound(err) { // no KubeVirt serves it
		return fmt.Errorf("%w; KubeVirt's evacuate/cancel: %w", notFound, err)
	}
	return err
}
