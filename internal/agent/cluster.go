package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// clusterSeen takes over what the API server says now.
func (k *keeper) clusterSeen() {
	c := k.cfg.Cluster
	if c == nil {
		return
	}
	// Before the look: what is not there although all was listed, is absent.
	synced := c.Synced()
	before := k.obs.VMI.UID
	k.vmiSeen(synced)
	k.podsSeen(c.Pods(k.namespace, k.name))
	k.resolve()
	k.warnOfPod()
	if before != k.obs.VMI.UID {
		k.look() // who the launcher may claim to be has changed
	}
}

func (k *keeper) vmiSeen(synced bool) {
	vmi, there := k.cfg.Cluster.VMI(k.namespace, k.name)
	seen := grace.VMI{UID: vmi.UID, Created: vmi.Created, DeletingAt: vmi.DeletingAt}
	switch {
	case there && vmi.Deleting:
		seen.State = grace.VMIDeleting
	case there:
		seen.State = grace.VMIPresent
	case synced:
		seen.State = grace.VMIAbsent
	}
	k.obs.SeeVMI(&k.rec, seen)
	k.stated = vmi.Grace
}

// vmiStatement is what the VMI says of the grace period. Another VMI of that
// name says nothing, and one that is missing cannot be read.
func (k *keeper) vmiStatement() grace.Statement {
	uid, created := k.obs.Identity(&k.rec)
	if created.IsZero() || k.obs.VMI.UID != uid {
		return grace.Statement{Source: grace.SourceVMI}
	}
	return k.statement(grace.SourceVMI, k.stated)
}

// podsSeen picks the launcher pod, and with it the launcher directory.
func (k *keeper) podsSeen(pods []Pod) {
	before, pod := k.obs.Pod.UID, k.obs.ChoosePod(&k.rec, pods)
	k.obs.Pod = pod
	if pod.UID == before {
		shown := slices.ContainsFunc(pods, func(p Pod) bool { return p.UID == pod.UID })
		if !shown && k.obs.Shim == grace.ShimAlive {
			k.look() // it lives, or nothing has told of its end
		}
		return
	}
	k.dir = k.cfg.Launcher(k.namespace, k.name, pod.UID)
	k.cfg.Watch(k.domain, pod.UID)
	// What was seen was another launcher's.
	release(k, &k.shim)
	k.view, k.trigger, k.spent, k.told = watch.View{}, watch.FileID{}, watch.FileID{}, signals.Status{}
	k.obs.Ours, k.obs.Trigger, k.obs.Shim, k.obs.Holder = false, false, grace.ShimUnknown, grace.Holder{}
	k.look()
}

// vmUID is the UID by which the launcher knows this VM.
func (k *keeper) vmUID() string {
	switch {
	case k.obs.Pod.VMI != "":
		return k.obs.Pod.VMI
	case k.obs.Recorded:
		return k.rec.UID
	default:
		return k.obs.UID
	}
}

// checkClaim rejects a vm.json that names another VM than Kubernetes does.
func (k *keeper) checkClaim(view *watch.View) {
	uid := k.obs.Pod.VMI
	if known, created := k.obs.Identity(&k.rec); uid == "" && !created.IsZero() {
		uid = known
	}
	if claim := view.VM.UID; uid != "" && claim != "" && claim != uid {
		view.VM = signals.VM{}
		view.Rejected = append(view.Rejected, watch.Rejection{
			Reason: watch.ReasonVMClaim, Err: fmt.Errorf("vm.json claims the UID %.64q, the VMI has %s", claim, uid),
		})
	}
}

// needed: what the API server shows takes somebody who remembers more than
// that. A VMI alone does not, unless its deletion is done and must not be held
// against the next domain.
func (k *keeper) needed() bool {
	spent := k.obs.VMI.UID != "" && k.obs.VMI.UID == k.obs.Spent
	return spent || k.obs.Pod.UID != ""
}

func (k *keeper) confirm() {
	uid, created := k.obs.Identity(&k.rec)
	proof, fate := k.rec.VMICreated.IsZero(), grace.FateUnknown
	k.call(&k.obs.Confirm, confirmTimeout, func(ctx context.Context) (err error) {
		fate, err = k.cfg.Cluster.Confirm(ctx, k.namespace, k.name, uid, created)
		return err
	}, func(err error) {
		if now, _ := k.obs.Identity(&k.rec); !k.obs.Recorded || now != uid {
			return
		}
		switch {
		case err != nil && proof:
			k.log.Debug("cannot ask the API server about the VMI", "uid", uid, "err", err)
			return
		case err != nil:
			k.log.Warn("the VMI is missing, and the API server cannot say what became of it; the VM goes on", "uid", uid, "err", err)
			return
		case proof && fate == grace.FateHere:
			k.log.Debug("the VMI is there", "uid", uid)
		default:
			k.log.Info("asked the API server about the VMI", "uid", uid, "fate", fate)
		}
		k.obs.Became(&k.rec, uid, fate, k.now())
		k.clusterSeen()
	})
}

// podMargin is what a launcher pod needs beyond the grace period and
// --destroy-timeout.
const podMargin = 5 * time.Second

// warnOfPod says early that kubelet would kill the launcher too soon.
func (k *keeper) warnOfPod() {
	need := k.obs.Period.Length + k.cfg.Policy.DestroyTimeout + podMargin
	_, created := k.obs.Identity(&k.rec)
	known := !k.obs.Pod.Created.IsZero() // not only by the record
	if created.IsZero() || !known || k.obs.Pod.Deleting || k.obs.Pod.Done || k.obs.Pod.GracePeriod >= need {
		return
	}
	if k.reportAs(reasonPodTooShort, k.obs.Pod.UID, true, fmt.Sprintf("the launcher pod has a terminationGracePeriodSeconds of %d; the VM's grace period needs at least %d",
		grace.WholeSeconds(k.obs.Pod.GracePeriod), grace.WholeSeconds(need))) {
		k.log.Warn("the launcher pod would be killed before the VM's grace period is over", "pod", k.obs.Pod.UID, "has", k.obs.Pod.GracePeriod, "needs", need)
	}
}
