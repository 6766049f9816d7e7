package nodeagent

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/internal/kube"
)

// cluster is what the agent needs of internal/kube, in the agent's words.
type cluster struct{ *kube.Source }

func (c cluster) VMI(namespace, name string) (agent.VMI, bool) {
	vmi, ok := c.Source.VMI(namespace, name)
	return agent.VMI(vmi), ok
}

func (c cluster) Pods(namespace, name string) []agent.Pod {
	known := c.Source.Pods(namespace, name)
	pods := make([]agent.Pod, len(known))
	for i, p := range known {
		pods[i] = agent.Pod(p)
	}
	return pods
}

func (c cluster) Report(e agent.Event) { c.Source.Report(kube.Event(e)) }

// openCluster asks nobody yet: the agent starts with the API server down, too.
func (o *Options) openCluster(changed func(namespace, name string), log *slog.Logger) (*kube.Source, error) {
	kube.SilenceLibraries()
	source, err := kube.New(kube.Config{
		Kubeconfig: o.Kubeconfig, Node: o.NodeName, Log: log, Now: clock{}.Now, Changed: changed,
		Shelf: shelf{filepath.Join(o.StateDir, "events")},
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
