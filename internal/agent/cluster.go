package agent

import (
	"context"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// clusterSeen tells the core what the API server shows now.
func (k *keeper) clusterSeen() {
	c, namespace, name := k.a.cfg.Cluster, k.vm.Namespace, k.vm.Name
	if c == nil {
		return
	}
	if k.a.cfg.Migration != nil {
		k.vm.SeeMigration(k.a.cfg.Migration(k.domain))
	}
	// Before the look: what is not there although all was listed, is absent.
	synced := c.Synced()
	vmi, there := c.VMI(namespace, name)
	seen := grace.VMI{UID: vmi.UID, Created: vmi.Created, Grace: vmi.Grace, DeletingAt: vmi.DeletingAt}
	switch {
	case there && vmi.Deleting:
		seen.State = grace.VMIDeleting
	case there:
		seen.State = grace.VMIPresent
	case synced:
		seen.State = grace.VMIAbsent
	}
	k.vm.SeeVMI(seen)
	k.vm.SeePods(c.Pods(namespace, name))
}

func (k *keeper) confirm(d grace.Decision) {
	uid, created := k.vm.Owner()
	proof, fate := k.vm.Record().VMICreated.IsZero(), grace.FateUnknown
	k.call(d, within(confirmTimeout, func(ctx context.Context) (err error) {
		fate, err = k.a.cfg.Cluster.Confirm(ctx, k.vm.Namespace, k.vm.Name, uid, created)
		return err
	}), func(err error, _ int) {
		switch {
		case err != nil:
			// Asked again each 2 s; the cluster's side warns once.
			k.log.Debug("the API server cannot say what became of the VMI; the VM goes on", "uid", uid, "err", err)
			return
		case proof && fate == grace.FateHere:
			k.log.Debug("the VMI is there", "uid", uid)
		default:
			k.log.Info("asked the API server about the VMI", "uid", uid, "fate", fate)
		}
		k.vm.Learn(uid, fate, k.now())
	})
}
