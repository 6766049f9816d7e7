package launcher

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/controller/index"
	"github.com/vmgrace/vmgrace/internal/controller/patch"
	"github.com/vmgrace/vmgrace/internal/launcher"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// link makes the oldest pod that names the VMI its launcher, if it has none. It returns whether it
// has. An Event tells of a pod that cannot become one.
func (r *reconciler) link(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, pods []launcher.Pod) (bool, error) {
	waiting := launcher.Unlinked(pods)
	if len(waiting) == 0 {
		return false, nil
	}
	if why := launcher.Refusal(vmi, pods); why != "" {
		r.refuse(vmi, &waiting[0], why)
		return false, nil
	}
	key := client.ObjectKeyFromObject(vmi)
	live, all := &kubevirt.VirtualMachineInstance{}, []corev1.Pod{}
	err := r.Live.Get(ctx, key, live)
	if err == nil {
		all, err = index.NamingNow(ctx, r.Live, key)
	}
	if err != nil {
		return false, client.IgnoreNotFound(err) // the deletion is an event
	}
	for i := range all {
		p := &all[i]
		if string(p.UID) != waiting[0].UID || len(launcher.Unlinked(index.LauncherFacts(all[i:i+1]))) == 0 {
			continue
		}
		if launcher.Refusal(live, index.LauncherFacts(all)) != "" {
			return false, nil // the cache will show why
		}
		index.Link(p, live)
		fields := map[string]any{"labels": p.Labels, "annotations": p.Annotations, "ownerReferences": p.OwnerReferences}
		if err := patch.AllMetadataAsRead(ctx, r.Client, p, fields); err != nil {
			return false, fmt.Errorf("link launcher pod %s: %w", p.Name, err)
		}
		r.Log.Info("launcher pod linked", "vmi", key.String(), "pod", p.Name)
		r.Events.Eventf(live, p, corev1.EventTypeNormal, "LauncherLinked", "Link", "pod %s is the launcher of this VM", p.Name)
		return true, nil
	}
	return false, nil
}

// refuse tells once for each pod why it is not linked.
func (r *reconciler) refuse(vmi *kubevirt.VirtualMachineInstance, p *launcher.Pod, why string) {
	if before, _ := r.refused.Swap(client.ObjectKeyFromObject(vmi), p.UID); before == p.UID {
		return
	}
	r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "LauncherNotLinked", "Link", "pod %s is no launcher of this VMI, which %s", p.Name, why)
}

// act writes the step to the VMI, and to its label once the status has the node. The agent of
// that node does not hear of the VMI before.
func (r *reconciler) act(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, step launcher.Step) error {
	if step.Write {
		if err := patch.Status(ctx, r.Client, vmi, operations(vmi, step)...); err != nil {
			return err
		}
		r.tell(vmi, step)
		return nil // which is an event
	}
	if step.Launcher == nil || step.Node == "" || vmi.Labels[kubevirt.NodeNameLabel] != "" {
		return nil // once it is set, migrations change it
	}
	return patch.MetadataAsRead(ctx, r.Client, vmi, "labels", map[string]any{kubevirt.NodeNameLabel: step.Node})
}

func operations(vmi *kubevirt.VirtualMachineInstance, step launcher.Step) (all []patch.Operation) {
	if step.Launcher == nil {
		return []patch.Operation{{Op: "add", Path: "/status/vmgraceLauncher"}, {Op: "add", Path: "/status/phase", Value: ""}}
	}
	if step.Phase != vmi.Status.Phase {
		all = append(all, patch.Operation{Op: "add", Path: "/status/phase", Value: step.Phase})
	}
	if step.Node != vmi.Status.NodeName {
		all = append(all, patch.Operation{Op: "add", Path: "/status/nodeName", Value: step.Node})
	}
	return append(all, patch.Operation{Op: "add", Path: "/status/vmgraceLauncher", Value: step.Launcher})
}

// tell emits the Events of phases that a user waits for.
func (r *reconciler) tell(vmi *kubevirt.VirtualMachineInstance, step launcher.Step) {
	if step.Phase == vmi.Status.Phase {
		return
	}
	r.Log.Info("phase", "vmi", vmi.Namespace+"/"+vmi.Name, "phase", step.Phase, "node", step.Node, "why", step.Why)
	switch step.Phase {
	case kubevirt.VMIRunning:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Started", "Start", "launcher pod %s runs on node %s", step.Launcher.Pod, step.Node)
	case kubevirt.VMISucceeded:
		r.Events.Eventf(vmi, nil, corev1.EventTypeNormal, "Stopped", "Stop", "%s", step.Why)
	case kubevirt.VMIFailed:
		r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "Stopped", "Stop", "%s", step.Why)
	default:
	}
}
