package node

import (
	"context"
	"log/slog"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/internal/node/kube"
)

// vmis returns a source that is empty until openCluster has worked.
func (o *Options) vmis(changed func(namespace, name string), log *slog.Logger) *kube.Source {
	kube.SilenceLibraries()
	return kube.New(kube.Config{Kubeconfig: o.Kubeconfig, Node: o.NodeName, Log: log, Now: clock{}.Now, Changed: changed})
}

// openCluster sends no request, so that the agent starts even while the API server is
// down.
func (n *node) openCluster(context.Context) error {
	if err := n.vmis.Open(); err != nil {
		return err
	}
	n.warnOfKubeletDir(n.log)
	return nil
}

func (o *Options) warnOfKubeletDir(log *slog.Logger) {
	if pods := filepath.Join(o.KubeletDir, "pods"); !isDir(pods) {
		log.Warn("kubelet's pods are not where they should be: launcher directories will not be found; see --kubelet-dir", "dir", pods)
	}
}

// runCluster takes part in the cluster until ctx ends.
func (n *node) runCluster(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.vmis.Run(ctx) })
	if n.label != nil {
		group.Go(func() error { n.label.Run(ctx); return nil })
	}
	if n.moves != nil {
		group.Go(func() error { return n.moves.run(ctx) })
	}
	return group.Wait()
}
