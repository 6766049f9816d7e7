package node

import (
	"context"
	"errors"
	stdlog "log"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/internal/logs"
	"github.com/vmgrace/vmgrace/internal/logs/writer"
	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/deadline"
	"github.com/vmgrace/vmgrace/internal/node/failpoint"
	"github.com/vmgrace/vmgrace/internal/node/kube"
	"github.com/vmgrace/vmgrace/internal/node/metrics"
	"github.com/vmgrace/vmgrace/internal/node/migratable"
	"github.com/vmgrace/vmgrace/internal/node/podcondition"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// exitTimeout is how long calls that hang may delay the end of the agent.
const exitTimeout = 700 * time.Millisecond

// node is one agent with everything around it.
type node struct {
	*Options
	log        *slog.Logger
	meter      *metrics.Metrics
	deadlines  *deadline.Thread
	ends       *process.Ends
	records    *cache
	driver     hypervisors
	from       launchers
	vmis       *kube.Source // nil with --standalone
	agent      *agent.Agent
	moves      *migrations // nil without live migrations
	migratable *migratable.Conditions
	label      *kube.NodeLabel          // nil with --standalone and in a dry run
	shown      *podcondition.Conditions // nil with --standalone and in a dry run
	points     failpoint.Points
}

// Run runs the agent until ctx ends. It then returns within a second, whatever hangs, and
// leaves every VM alone.
//
// It reads the records and arms their deadlines before anything else: a signal needs no
// dependency.
//
// With --beside-kubevirt it is another agent: see besideNode.
func (o *Options) Run(ctx context.Context, stderr *writer.Writer) error {
	if o.BesideKubeVirt {
		return o.runBeside(ctx, stderr)
	}
	group, ctx := errgroup.WithContext(ctx)
	n, err := o.arm(ctx, stderr)
	if err != nil {
		return err
	}
	dependencies := n.dependencies()
	if !n.guarding() {
		for _, d := range dependencies {
			if err := d.check(ctx); err != nil {
				return errors.Join(err, n.close())
			}
		}
	}
	lockMemory(n.log)
	n.log.Info("node-agent starts", "node", o.NodeName, "standalone", o.Standalone, "stateDir", o.StateDir,
		"records", n.records.records.Load(), "dryRun", o.DryRun)
	group.Go(func() error { return n.agent.Run(ctx) })
	group.Go(func() error { return n.from.watcher.Run(ctx) })
	if n.migratable != nil {
		group.Go(func() error { n.migratable.Run(ctx); return nil })
	}
	if n.shown != nil {
		group.Go(func() error { n.shown.Run(ctx); return nil })
	}
	group.Go(func() error { watchConflicts(ctx, nodeRoot, n.meter.Conflict, n.log); return nil })
	for _, d := range dependencies {
		group.Go(func() error { return d.keep(ctx, n.guarding, n.log) })
	}
	err = wait(ctx, func() error {
		err := group.Wait()
		if closeErr := n.close(); closeErr != nil {
			n.log.Warn("not everything could be closed", "err", closeErr)
		}
		return err
	})
	n.log.Info("node-agent ends; every VM is left as it is")
	return err
}

// arm reads the records and arms their deadlines.
func (o *Options) arm(ctx context.Context, stderr *writer.Writer) (*node, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	n := &node{Options: o, log: logs.New(stderr, o.LogFormat, o.Verbosity), meter: metrics.New(), points: failpoint.New()}
	stdlog.SetOutput(stderr) // for libraries: their lines must not block either
	stderr.Report(func() { n.meter.Rejected("log_line") },
		func(lines int) { n.log.Warn("log lines were dropped: standard error was not read", "lines", lines) })
	if n.deadlines, err = deadline.Start(n.log); err != nil {
		return nil, err
	}
	if n.ends, err = process.WaitForEnds(); err != nil {
		return nil, errors.Join(err, n.deadlines.Close())
	}
	records, known, err := o.takeCache(ctx, n.points.Disk(durable.Real()), n.meter, n.log)
	if err != nil {
		return nil, errors.Join(err, n.ends.Close(), n.deadlines.Close())
	}
	n.records = records
	n.driver = o.hypervisors(n.log)
	n.from = o.launchers(n.points.Launchers(func(name string) { n.agent.LauncherChanged(name); n.changed(name) }), n.log)
	config := agent.Config{
		Policy:     o.policy(boot),
		Hypervisor: n.driver, Cache: records, Processes: processes{n.deadlines, n.ends}, Clock: clock{}, Meter: n.meter,
		Launcher: n.driver.directory(n.from.launcher), Watch: n.from.watch,
	}
	n.delayShutdowns(ctx, &config, boot)
	if !o.Standalone {
		n.vmis = o.vmis(n.points.VMs(n.clusterChanged), n.log)
		n.meter.WatchUp(n.vmis.Up)
		config.Cluster = n.vmis
		n.driver.launchers.Trust(n.vmis)
		n.moves, n.migratable = n.migrations(known, boot), n.conditions()
		n.label = n.nodeLabel()
		if n.shown = n.podConditions(); n.shown != nil {
			config.Shown = n.shown.Changed
		}
	}
	if n.moves != nil {
		config.Migration = n.moves.sides.MigrationOf
	}
	n.agent = agent.New(n.points.Ports(config), n.log)
	n.records.agent = n.agent
	if n.records.read.Load() {
		n.agent.Guard(known)
	}
	n.meter.Observe(n.agent.Phases)
	if config.Inhibitor != nil {
		n.meter.NodeShutdown(n.agent.Node)
	}
	if n.driver.libvirt != nil {
		n.meter.LibvirtUp(n.driver.libvirt.Up)
	}
	return n, nil
}

// guarding reports whether a grace period is under way, or may be, because the records
// could not be read yet.
func (n *node) guarding() bool { return !n.records.read.Load() || n.agent.Guarding() }

func (n *node) dependencies() []*dependency {
	dependencies := []*dependency{{
		try: n.driver.check,
		run: func(ctx context.Context) error { return n.driver.run(ctx, n.points.Domains(n.domainChanged)) },
	}}
	if n.Standalone {
		dependencies = append(dependencies, &dependency{try: n.checkLaunchersDir})
	} else {
		dependencies = append(dependencies, &dependency{try: n.openCluster, run: n.runCluster})
	}
	dependencies = append(dependencies, &dependency{try: n.records.open, run: n.records.keep})
	if n.MetricsAddress == "" {
		return dependencies
	}
	var listener net.Listener
	ready := func() bool {
		for _, d := range dependencies {
			if !d.met.Load() {
				return false
			}
		}
		return n.records.ready() && n.from.watcher.Armed() && n.agent.Ready()
	}
	return append(dependencies, &dependency{
		try: func(ctx context.Context) (err error) {
			listener, err = metrics.Listen(ctx, n.MetricsAddress)
			return err
		},
		run: func(ctx context.Context) error { return n.meter.Serve(ctx, listener, n.agent.Alive, ready) },
	})
}

func (n *node) close() error {
	return errors.Join(n.driver.close(), n.records.close(), n.ends.Close(), n.deadlines.Close())
}

func (o *Options) policy(boot string) grace.Policy {
	return grace.Policy{
		BootID: boot, Asleep: clock{}.asleep(), RetryInterval: o.RetryInterval, AgentTimeout: o.AgentTimeout,
		UseAgent: o.ShutdownMode == "auto", DestroyTimeout: o.DestroyTimeout, DryRun: o.DryRun,
		DefaultPeriod: o.DefaultGracePeriod,
	}
}

// wait waits for the end, but not for calls that hang past the end of ctx. They end with
// the process, and the kernel then releases the state directory.
func wait(ctx context.Context, end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(exitTimeout):
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err // what ended the agent
	}
	return nil
}
