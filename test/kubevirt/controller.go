package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const finalizer = "kubevirt.io/foregroundDeleteVirtualMachine"

// controller is virt-controller.
type controller struct {
	*cluster
	image string // of launcher pods
}

// RunController is virt-controller until ctx ends. image is that of the launcher pods.
func RunController(ctx context.Context, log *slog.Logger, image string) error {
	c, err := connect(log)
	if err != nil {
		return err
	}
	c.every(ctx, (&controller{c, image}).look)
	return nil
}

func (c *controller) look(ctx context.Context) error {
	vmis, err := c.vmis(ctx)
	if err != nil {
		return err
	}
	objects, err := c.list(ctx, "VirtualMachineInstanceMigration")
	if err != nil {
		return err
	}
	launchers, err := c.launchers(ctx)
	if err != nil {
		return err
	}
	var errs []error
	moving := map[string]bool{}
	for _, o := range objects {
		m := &migration{o}
		if v := find(vmis, m); !m.ended() {
			moving[m.GetNamespace()+"/"+m.text("spec", "vmiName")] = true
			errs = append(errs, c.migrate(ctx, m, v, launchers))
		}
	}
	for _, v := range vmis {
		its := launchers.of(v)
		errs = append(errs, c.vmi(ctx, v, its))
		if v.marked() && v.node() == v.text("status", "evacuationNodeName") && len(its) == 1 &&
			v.phase() == "Running" && !v.deleted() && v.is("LiveMigratable") && !moving[v.GetNamespace()+"/"+v.GetName()] {
			errs = append(errs, c.evacuate(ctx, v))
		}
	}
	return errors.Join(errs...)
}

func find(vmis []*vmi, m *migration) *vmi {
	for _, v := range vmis {
		if v.GetNamespace() == m.GetNamespace() && v.GetName() == m.text("spec", "vmiName") {
			return v
		}
	}
	return nil
}

// vmi makes a VMI's launcher, hands the VMI to the launcher's node, and tidies up.
func (c *controller) vmi(ctx context.Context, v *vmi, its pods) error {
	switch {
	case v.deleted() && len(its) == 0:
		v.SetFinalizers(nil)
		return client.IgnoreNotFound(c.Update(ctx, v.Unstructured))
	case v.deleted():
		for i := range its {
			if its[i].DeletionTimestamp == nil {
				if err := c.Delete(ctx, &its[i]); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("delete %s: %w", its[i].Name, err)
				}
			}
		}
		return nil
	case v.ended():
		return nil
	case v.phase() == "Pending" && len(its) == 0:
		if err := c.Create(ctx, newPod(v, c.image)); err != nil {
			return fmt.Errorf("launcher of %s: %w", v.GetName(), err)
		}
		v.set("Scheduling", "status", "phase")
		return c.Update(ctx, v.Unstructured)
	case v.phase() == "Scheduling" && len(its) == 1 && its[0].Status.Phase == corev1.PodRunning:
		v.set("Scheduled", "status", "phase")
		v.set(its[0].Spec.NodeName, "status", "nodeName")
		v.label("kubevirt.io/nodeName", its[0].Spec.NodeName)
		return c.Update(ctx, v.Unstructured)
	case v.phase() == "Running" && len(its) == 0:
		v.set("Failed", "status", "phase")
		return c.Update(ctx, v.Unstructured)
	}
	return nil
}

// evacuate makes the migration of a marked VMI, at the highest priority.
func (c *controller) evacuate(ctx context.Context, v *vmi) error {
	m := object{&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
		"metadata": map[string]any{
			"generateName": "kubevirt-evacuation-", "namespace": v.GetNamespace(),
			"annotations": map[string]any{"kubevirt.io/evacuationMigration": v.node()},
			"labels":      map[string]any{"kubevirt.io/vmi-name": v.GetName()},
		},
		"spec": map[string]any{"vmiName": v.GetName(), "priority": "system-critical"},
	}}}
	if err := c.Create(ctx, m.Unstructured); err != nil {
		return fmt.Errorf("migration of %s: %w", v.GetName(), err)
	}
	return nil
}

// migrate takes a migration one phase further. The nodes write what they have done into the
// VMI's status.migrationState.
func (c *controller) migrate(ctx context.Context, m *migration, v *vmi, launchers pods) error {
	if v == nil || v.deleted() || v.ended() || m.GetDeletionTimestamp() != nil {
		return c.phase(ctx, m, "Failed")
	}
	its := launchers.of(v)
	target := targetOf(its, m)
	if target == nil && m.phase() != "" && m.phase() != "Pending" {
		return c.phase(ctx, m, "Failed")
	}
	mine := v.move("migrationUid") == string(m.GetUID())
	switch phase := m.phase(); {
	case phase == "":
		return c.phase(ctx, m, "Pending")
	case phase == "Pending" && target == nil:
		return c.Create(ctx, newTarget(v, m, c.image))
	case phase == "Pending":
		return c.phase(ctx, m, "Scheduling")
	case phase == "Scheduling" && target.Status.Phase == corev1.PodRunning:
		return c.phase(ctx, m, "Scheduled")
	case phase == "Scheduled" && !mine:
		return c.handOver(ctx, m, v, its.at(v.node()), target)
	case phase == "Scheduled":
		return c.phase(ctx, m, "PreparingTarget")
	case phase == "PreparingTarget" && v.has("status", "migrationState", "targetNodeAddress"):
		return c.phase(ctx, m, "TargetReady")
	case phase == "TargetReady" && v.has("status", "migrationState", "startTimestamp"):
		return c.phase(ctx, m, "Running")
	case mine && v.has("status", "migrationState", "failed"):
		return errors.Join(c.phase(ctx, m, "Failed"), client.IgnoreNotFound(c.Delete(ctx, target)))
	case mine && v.moved():
		return c.phase(ctx, m, "Succeeded")
	}
	return nil
}

func targetOf(its pods, m *migration) *corev1.Pod {
	for i := range its {
		if its[i].Labels[migrationUID] == string(m.GetUID()) {
			return &its[i]
		}
	}
	return nil
}

// phase writes a migration's phase: its kind has the subresource status.
func (c *controller) phase(ctx context.Context, m *migration, phase string) error {
	passed, _, _ := unstructured.NestedSlice(m.Object, "status", "phaseTransitionTimestamps")
	m.set(append(passed, map[string]any{"phase": phase, "phaseTransitionTimestamp": now()}), "status", "phaseTransitionTimestamps")
	m.set(phase, "status", "phase")
	c.log.Info("migration", "name", m.GetName(), "vmi", m.text("spec", "vmiName"), "phase", phase)
	return client.IgnoreNotFound(c.Status().Update(ctx, m.Unstructured))
}

// handOver tells the nodes of a migration.
func (c *controller) handOver(ctx context.Context, m *migration, v *vmi, source, target *corev1.Pod) error {
	if source == nil {
		return c.phase(ctx, m, "Failed")
	}
	uid := string(m.GetUID())
	v.set(map[string]any{
		"migrationUid": uid, "sourceNode": v.node(), "sourcePod": source.Name, "targetNode": target.Spec.NodeName, "targetPod": target.Name,
		"sourceState": map[string]any{"node": v.node(), "pod": source.Name, "migrationUID": uid},
		"targetState": map[string]any{"node": target.Spec.NodeName, "pod": target.Name, "migrationUID": uid},
	}, "status", "migrationState")
	v.label("kubevirt.io/migrationTargetNodeName", target.Spec.NodeName)
	return c.Update(ctx, v.Unstructured)
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }
