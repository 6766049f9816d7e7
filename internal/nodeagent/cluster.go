package nodeagent

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/vmgrace/vmgrace/internal/kube"
)

// openCluster asks nobody yet: the agent starts with the API server down, too.
func (o *Options) openCluster(changed func(namespace, name string), log *slog.Logger) (*kube.Source, error) {
	kube.SilenceLibraries()
	source, err := kube.New(kube.Config{
		Kubeconfig: o.Kubeconfig, Node: o.NodeName, Log: log, Now: clock{}.Now, Changed: changed,
	})
	if err != nil {
		return nil, err
	}
	if pods := filepath.Join(o.KubeletDir, "pods"); !isDir(pods) {
		log.Warn("kubelet's pods are not where they should be: launcher directories will not be found; see --kubelet-dir", "dir", pods)
	}
	return source, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
