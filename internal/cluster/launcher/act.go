package launcher

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/index"
	"github.com/vmgrace/vmgrace/internal/cluster/patch"
	"github.com/vmgrace/vmgrace/internal/rules/launcher"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// link makes the oldest pod that names the VMI its launcher, if it has none. It returns whether it
// has, and for how long another one may be about to. An Event tells of a pod that cannot become one.
func (r *reconciler) link(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, pods []launcher.Pod) (linked bool, again time.Duration, err error) {
	waiting, why := launcher.Unlinked(string(vmi.UID), pods), launcher.Refusal(vmi, pods)
	if is := vmi.Status.Launcher; len(waiting) == 0 && why == "" && len(pods) > 0 && (is == nil || is.PodUID == "") {
		r.refuse(vmi, &pods[0], "has ended before: delete it, and apply the VMI's file again")
	}
	if len(waiting) == 0 {
		return false, 0, nil
	}
	if why != "" {
		r.refuse(vmi, &waiting[0], "is no launcher of this VMI, which "+why)
		return false, 0, nil
	}
	key := client.ObjectKeyFromObject(vmi)
	live, all := &kubevirt.VirtualMachineInstance{}, []corev1.Pod{}
	if err = r.Live.Get(ctx, key, live); err == nil {
		all, err = index.NamingAsCached(ctx, r.Client, r.Live, key)
	}
	if err != nil {
		return false, 0, client.IgnoreNotFound(err) // the deletion is an event
	}
	for i := range all {
		p := &all[i]
		if string(p.UID) != waiting[0].UID {
			continue
		}
		if len(launcher.Unlinked(string(live.UID), index.LauncherFacts(all[i:i+1]))) == 0 || launcher.Refusal(live, index.LauncherFacts(all)) != "" {
			return false, 0, nil // the cache will show why
		}
		return r.claim(ctx, live, p)
	}
	return false, 0, nil
}

// claim makes a pod the launcher of its VMI, both as the API server has them.
func (r *reconciler) claim(ctx context.Context, live *kubevirt.VirtualMachineInstance, p *corev1.Pod) (linked bool, again time.Duration, err error) {
	if launcher.Claimed(live, p.Name, time.Now()) != "" {
		return false, launcher.ClaimFor, nil
	}
	if err := patch.Claim(ctx, r.Client, live, p.Name); err != nil {
		return false, 0, err
	}
	index.Link(p, live)
	fields := map[string]any{"labels": p.Labels, "annotations": p.Annotations, "ownerReferences": p.OwnerReferences}
	if err := patch.AllMetadataAsRead(ctx, r.Client, p, fields); err != nil {
		return false, 0, fmt.Errorf("link launcher pod %s: %w", p.Name, err)
	}
	r.Log.Info("launcher pod linked", "vmi", client.ObjectKeyFromObject(live).String(), "pod", p.Name)
	r.Events.Eventf(live, p, corev1.EventTypeNormal, "LauncherLinked", "Link", "pod %s is the launcher of this VM", p.Name)
	return true, 0, nil
}

// refuse tells once for each pod why it is not linked.
func (r *reconciler) refuse(vmi *kubevirt.VirtualMachineInstance, p *launcher.Pod, why string) {
	if before, _ := r.refused.Swap(client.ObjectKeyFromObject(vmi), p.UID); before == p.UID {
		return
	}
	r.Events.Eventf(vmi, nil, corev1.EventTypeWarning, "LauncherNotLinked", "Link", "pod %s %s", p.Name, why)
}

// several is the type of the condition, and the reason of the Event, of a VM with launchers that are
// no migration's pair.
const several = "SeveralLaunchers"

// maxNames bounds the pods' names in the condition.
const maxNames = 512

// report writes whether the guest of a VMI may run more than once. It returns whether it has.
func (r *reconciler) report(ctx context.Context, f launcher.Facts) (bool, error) {
	wanted := patch.Wanted{Type: several}
	if names := launcher.Several(f); names != nil {
		now := metav1.Now()
		wanted.Is = &kubevirt.Condition{Type: several, Status: kubevirt.ConditionTrue, LastProbeTime: now, LastTransitionTime: now, Reason: several,
			Message: "the guest may run more than once, in pods " + oneline.Cut(strings.Join(names, ", "), maxNames) + ": delete all but one"}
	}
	steps := patch.Conditions(f.VMI, wanted)
	if len(steps) == 0 {
		return false, nil
	}
	if err := patch.Status(ctx, r.Client, f.VMI, steps...); err != nil {
		return false, err
	}
	if wanted.Is != nil {
		r.Events.Eventf(f.VMI, nil, corev1.EventTypeWarning, several, "Link", "%s", wanted.Is.Message)
	}
	return true, nil
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
	node := vmi.Status.NodeName // also of a VMI of others: what is applied again may state a former one
	if node == "" || vmi.Final() || vmi.Labels[kubevirt.NodeNameLabel] == node {
		return nil
	}
	return patch.MetadataAsRead(ctx, r.Client, vmi, "labels", map[string]any{kubevirt.NodeNameLabel: node})
}

func operations(vmi *kubevirt.VirtualMachineInstance, step launcher.Step) (all []patch.Operation) {
	if step.Phase != vmi.Status.Phase {
		all = append(all, patch.Operation{Op: "add", Path: "/status/phase", Value: step.Phase})
	}
	if step.Launcher == nil {
		return append(all, patch.Operation{Op: "add", Path: "/status/vmgraceLauncher"})
	}
	if step.Final && vmi.Condition(kubevirt.LiveMigratable) != nil {
		now := metav1.Now()
		all = append(all, patch.Conditions(vmi, patch.Wanted{Type: kubevirt.LiveMigratable, Is: &kubevirt.Condition{
			Type: kubevirt.LiveMigratable, Status: kubevirt.ConditionFalse, Reason: kubevirt.ReasonGuestNotRunning,
			Message: "the VM has ended: " + step.Why, LastProbeTime: now, LastTransitionTime: now,
		}})...)
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
