package node

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/internal/logs"
	"github.com/vmgrace/vmgrace/internal/logs/writer"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/reboot"
	"github.com/vmgrace/vmgrace/internal/node/kube"
	"github.com/vmgrace/vmgrace/internal/node/metrics"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// besideFlags returns those that mean something with --beside-kubevirt.
func besideFlags() []string {
	return []string{
		"beside-kubevirt", "node-name", "kubeconfig", "kubelet-dir", "state-dir", "metrics-address", "dbus-socket", "node-shutdown-timeout",
		"log-format", "verbose", "version", "help",
	}
}

func (o *Options) checkBeside(f *pflag.FlagSet) error {
	if !o.BesideKubeVirt {
		return nil
	}
	var err error
	f.Visit(func(flag *pflag.Flag) {
		if err == nil && !slices.Contains(besideFlags(), flag.Name) {
			err = fmt.Errorf("--%s has no meaning with --beside-kubevirt: KubeVirt runs the VMs", flag.Name)
		}
	})
	return err
}

// besideNode is an agent beside KubeVirt: it has no VMs of its own, and ends none.
type besideNode struct {
	*Options
	boot    string
	log     *slog.Logger
	meter   *metrics.Metrics
	records *cache
	vmis    *kube.Source
	watcher *watch.Watcher
	keeper  *hold.Keeper
	// shutdown and handler are nil if the node's shutdown is not delayed.
	shutdown *reboot.Shutdown
	handler  *reboot.Handler
}

func (o *Options) runBeside(ctx context.Context, stderr *writer.Writer) error {
	n, err := o.beside(ctx, stderr)
	if err != nil {
		return err
	}
	dependencies := n.dependencies()
	for _, d := range dependencies {
		if err := d.check(ctx); err != nil && !n.keeper.Holding() {
			return errors.Join(err, n.records.close())
		}
	}
	n.log.Info("node-agent starts beside KubeVirt", "node", o.NodeName, "stateDir", o.StateDir, "holds", n.records.records.Load())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.keeper.Run(ctx) })
	group.Go(func() error { return n.watcher.Run(ctx) })
	if n.shutdown != nil {
		group.Go(func() error { n.shutdown.Run(ctx, func() {}); return nil })
		group.Go(func() error { return n.handler.Run(ctx) })
	}
	for _, d := range dependencies {
		group.Go(func() error { return d.keep(ctx, n.keeper.Holding, n.log) })
	}
	err = wait(ctx, func() error {
		err := group.Wait()
		if closeErr := n.records.close(); closeErr != nil {
			n.log.Warn("not everything could be closed", "err", closeErr)
		}
		return err
	})
	n.log.Info("node-agent ends; every launcher is left as it is")
	return err
}

// beside reads the records, and goes on with their holds.
func (o *Options) beside(ctx context.Context, stderr *writer.Writer) (*besideNode, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	n := &besideNode{Options: o, boot: boot, log: logs.New(stderr, o.LogFormat, o.Verbosity), meter: metrics.New()}
	stdlog.SetOutput(stderr) // for libraries: their lines must not block either
	stderr.Report(func() { n.meter.Rejected("log_line") },
		func(lines int) { n.log.Warn("log lines were dropped: standard error was not read", "lines", lines) })
	records, known, err := o.takeCache(ctx, durable.Real(), n.meter, n.log)
	if err != nil {
		return nil, err
	}
	n.records = records
	changed := func(namespace, name string) { n.keeper.ClusterChanged(namespace, name) }
	kube.SilenceLibraries()
	n.vmis = kube.New(kube.Config{Kubeconfig: o.Kubeconfig, Node: o.NodeName, Log: n.log, Now: clock{}.Now, Changed: changed, Moves: changed})
	n.watcher = watch.New(logs.Limited(n.log), func(uid string) { n.keeper.LauncherChanged(uid) })
	n.keeper = hold.New(hold.Config{
		BootID: boot, Cluster: kube.Beside{Source: n.vmis}, Records: records, Clock: clock{}, Log: n.log,
		Directory: func(uid, namespace, vm string) hold.Directory { return n.directory(uid, namespace, vm) },
		Watch:     func(uid, namespace, vm string) { n.watcher.Set(uid, n.directory(uid, namespace, vm)) },
		Unwatch:   func(uid string) { n.watcher.Set(uid, watch.Directory{}) },
		Ended:     func(how hold.Outcome) { n.meter.HoldEnded(string(how)) },
	})
	records.agent = n.keeper
	n.keeper.Guard(known)
	n.meter.WatchUp(n.vmis.Up)
	n.meter.Observe(n.keeper.Phases)
	if o.DBusSocket != "" {
		n.passShutdownsOn(ctx)
	}
	return n, nil
}

// directory returns the launcher directory of a pod. Its UID is valid: the pod's watch and the
// records let no other pass.
func (n *besideNode) directory(uid, namespace, vm string) watch.Directory {
	d, _ := watch.EmptyDir(n.KubeletDir, uid, namespace, vm)
	return d
}

// openCluster sends no request, so that the agent starts even while the API server is down.
func (n *besideNode) openCluster(context.Context) error {
	n.warnOfKubeletDir(n.log)
	return n.vmis.Open()
}

func (n *besideNode) dependencies() []*dependency {
	dependencies := append(make([]*dependency, 0, 3), //nolint:mnd // these two, and the metrics
		&dependency{try: n.openCluster, run: n.vmis.Run},
		&dependency{try: n.records.open, run: n.records.keep})
	if n.MetricsAddress == "" {
		return dependencies
	}
	var listener net.Listener
	ready := func() bool {
		return n.records.ready() && n.watcher.Armed() && !slices.ContainsFunc(dependencies, func(d *dependency) bool { return !d.met.Load() })
	}
	return append(dependencies, &dependency{
		try: func(ctx context.Context) (err error) {
			listener, err = metrics.Listen(ctx, n.MetricsAddress)
			return err
		},
		run: func(ctx context.Context) error { return n.meter.Serve(ctx, listener, n.keeper.Alive, ready) },
	})
}
