package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/vmgrace/vmgrace/internal/logs"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/inpod"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// launchers finds and watches the launcher directories.
type launchers struct {
	watcher  *watch.Watcher
	launcher func(namespace, name, pod string) inpod.Directory
	watch    func(domain, pod string)
}

// launchers returns the directories below --launchers-dir, or in a cluster the volumes of
// launcher pods, found by pod UID.
func (o *Options) launchers(changed func(name string), log *slog.Logger) launchers {
	if o.Standalone {
		return launchers{
			watcher: watch.NewParent(o.LaunchersDir, logs.Limited(log), changed),
			launcher: func(namespace, name, _ string) inpod.Directory {
				return watch.Directory{Base: o.LaunchersDir, Name: grace.DomainName(namespace, name), Namespace: namespace, VM: name}
			},
		}
	}
	watcher := watch.New(logs.Limited(log), changed)
	dir := func(namespace, name, pod string) (watch.Directory, bool) {
		return watch.EmptyDir(o.KubeletDir, pod, namespace, name)
	}
	return launchers{
		watcher: watcher,
		launcher: func(namespace, name, pod string) inpod.Directory {
			d, ok := dir(namespace, name, pod)
			if !ok {
				return noDirectory{} // no pod is known
			}
			return d
		},
		watch: func(domain, pod string) {
			namespace, name, _ := grace.SplitDomainName(domain)
			d, _ := dir(namespace, name, pod)
			watcher.Set(domain, d)
		},
	}
}

// noDirectory is the launcher directory of a VM without a launcher pod.
type noDirectory struct{}

func (noDirectory) Look() (watch.View, error)           { return watch.View{}, nil }
func (noDirectory) WriteStatus(grace.Status) error      { return nil }
func (noDirectory) RemoveTrigger(grace.TriggerID) error { return nil }
func (noDirectory) Listen() (net.Listener, error)       { return nil, errors.New("no launcher pod is known") }

func (o *Options) checkLaunchersDir(context.Context) error {
	if !isDir(o.LaunchersDir) {
		return fmt.Errorf("--launchers-dir %s is no directory; create it (mkdir -p) or name another", o.LaunchersDir)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
