package agent

import (
	"context"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// clusterSeen passes what the API server shows now to the core.
func (k *keeper) clusterSeen() {
	c, namespace, name := k.a.cfg.Cluster, k.vm.Namespace, k.vm.Name
	if c == nil {
		return
	}
	if k.a.cfg.Migration != nil {
		k.vm.SeeMigration(k.a.cfg.Migration(k.domain)) // before its VMI, which it replaces at first
	}
	k.vm.SeeVMI(c.VMI(namespace, name))
	k.vm.SeePods(c.Pods(namespace, name))
}

func (k *keeper) confirm(d grace.Decision, _ grace.Mono) {
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
