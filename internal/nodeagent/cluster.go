package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/internal/kube"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// earlyEvents is how many Events are kept until the API server's client is there.
const earlyEvents = 256

// cluster is what the agent needs of internal/kube, in the agent's words. It
// knows nothing until open has worked.
type cluster struct {
	options *Options
	log     *slog.Logger
	changed func(namespace, name string)

	source atomic.Pointer[kube.Source]
	early  chan agent.Event
}

func (o *Options) cluster(changed func(namespace, name string), log *slog.Logger) *cluster {
	kube.SilenceLibraries()
	return &cluster{options: o, log: log, changed: changed, early: make(chan agent.Event, earlyEvents)}
}

// open sends no request: the agent starts with the API server down, too.
func (c *cluster) open(context.Context) error {
	source, err := kube.New(kube.Config{
		Kubeconfig: c.options.Kubeconfig, Node: c.options.NodeName, Log: c.log, Now: clock{}.Now, Changed: c.changed,
	})
	if err != nil {
		return err
	}
	if pods := filepath.Join(c.options.KubeletDir, "pods"); !isDir(pods) {
		c.log.Warn("kubelet's pods are not where they should be: launcher directories will not be found; see --kubelet-dir", "dir", pods)
	}
	c.source.Store(source)
	return nil
}

func (c *cluster) run(ctx context.Context) error {
	for len(c.early) > 0 {
		c.Report(<-c.early)
	}
	return c.source.Load().Run(ctx)
}

// Up tells whether the API server answers.
func (c *cluster) Up() bool {
	s := c.source.Load()
	return s != nil && s.Up()
}

// VMI implements agent.Cluster.
func (c *cluster) VMI(namespace, name string) grace.VMI {
	s := c.source.Load()
	if s == nil {
		return grace.VMI{}
	}
	return s.VMI(namespace, name)
}

// Pods implements agent.Cluster.
func (c *cluster) Pods(namespace, name string) []grace.Pod {
	s := c.source.Load()
	if s == nil {
		return nil
	}
	return s.Pods(namespace, name)
}

// Confirm implements agent.Cluster.
func (c *cluster) Confirm(ctx context.Context, namespace, name, uid string, created time.Time) (grace.Fate, error) {
	s := c.source.Load()
	if s == nil {
		return grace.FateUnknown, errors.New("there is no client of the API server yet")
	}
	return s.Confirm(ctx, namespace, name, uid, created)
}

// Report implements agent.Cluster.
func (c *cluster) Report(e agent.Event) {
	if s := c.source.Load(); s != nil {
		s.Report(e)
		return
	}
	select {
	case c.early <- e:
	default: // Events are best effort
	}
}

// Settle implements agent.Cluster.
func (c *cluster) Settle(ctx context.Context, namespace, name string) {
	if s := c.source.Load(); s != nil {
		s.Settle(ctx, namespace, name)
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
