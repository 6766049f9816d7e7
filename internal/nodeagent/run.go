package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/internal/deadline"
	"github.com/vmgrace/vmgrace/internal/failpoint"
	"github.com/vmgrace/vmgrace/internal/metrics"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/libvirt"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// leave is how long calls that hang may hold up the end of the agent.
const leave = 700 * time.Millisecond

// Run is the agent's life, until ctx ends. It returns within a second of
// that, whatever hangs, and leaves every VM alone.
func (o *Options) Run(ctx context.Context, log *slog.Logger) error {
	if err := libvirt.CheckLibrary(); err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	var listener net.Listener
	if o.MetricsAddress != "" {
		if listener, err = metrics.Listen(ctx, o.MetricsAddress); err != nil {
			return err
		}
	}
	var a *agent.Agent
	points := failpoint.New()
	from, err := o.sources(
		points.Launchers(func(name string) { a.LauncherChanged(name) }),
		points.VMs(func(namespace, name string) { a.ClusterChanged(namespace, name) }), log)
	if err != nil {
		return err
	}
	store, loaded, unsaved, err := o.openCache(points.Disk(durable.Real()), log)
	if err != nil {
		return err
	}
	meter := metrics.New()
	for _, q := range loaded.Quarantined {
		meter.Rejected("record")
		log.Error("a record cannot be used; it is kept beside the others for you to look at", "file", q.Name, "movedTo", q.MovedTo, "reason", q.Reason)
	}
	meter.Recovered(len(loaded.Records))

	driver := libvirt.New(libvirt.Config{URI: o.LibvirtURI, Logger: log})
	deadlines, err := deadline.Start(log)
	if err != nil {
		return err
	}
	a = agent.New(points.Ports(agent.Config{
		Policy: o.policy(boot), DefaultPeriod: o.DefaultGracePeriod,
		Hypervisor: driver, Expect: driver.Expect, Cache: store, Processes: processes{deadlines}, Clock: clock{}, Meter: meter, Unsaved: unsaved,
		Launcher: from.launcher, Watch: from.watch, Cluster: from.cluster,
	}), log)
	meter.Observe(state{a, driver})
	log.Info("node-agent starts", "node", o.NodeName, "standalone", o.Standalone, "stateDir", o.StateDir,
		"records", len(loaded.Records), "dryRun", o.DryRun)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return driver.Run(ctx, points.Domains(a.DomainChanged)) })
	group.Go(func() error { return from.watcher.Run(ctx) })
	if from.kube != nil {
		meter.WatchUp(from.kube.Up)
		group.Go(func() error { return from.kube.Run(ctx) })
	}
	group.Go(func() error { return a.Run(ctx, loaded.Records) })
	group.Go(func() error {
		return keepCache(ctx, o.StateDir, store, a.SaveAgain, func() { meter.Rejected("record_write") }, log)
	})
	if listener != nil {
		ready := func() bool { return a.Ready() && from.watcher.Armed() }
		group.Go(func() error { return meter.Serve(ctx, listener, a.Alive, ready) })
	}
	err = wait(ctx, func() error {
		err := group.Wait()
		if closeErr := errors.Join(driver.Close(), store.Close(), deadlines.Close()); closeErr != nil {
			log.Warn("not everything could be closed", "err", closeErr)
		}
		return err
	})
	log.Info("node-agent ends; every VM is left as it is")
	return err
}

func (o *Options) policy(boot string) grace.Policy {
	return grace.Policy{
		BootID: boot, RetryInterval: o.RetryInterval, AgentTimeout: o.AgentTimeout,
		UseAgent: o.ShutdownMode == "auto", DestroyTimeout: o.DestroyTimeout, DryRun: o.DryRun,
	}
}

// wait waits for the end, but not for calls that hang past the end of ctx: the
// process ends with them, and the kernel lets go of the state directory.
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
	case <-time.After(leave):
		return nil
	}
}

// state joins what is asked for at a scrape.
type state struct {
	*agent.Agent
	driver *libvirt.Driver
}

func (s state) LibvirtUp() bool { return s.driver.Up() }

// processes opens real ones.
type processes struct{ deadlines *deadline.Thread }

func (p processes) Open(pid int, start uint64) (agent.Process, error) {
	opened, err := process.Open(pid, start)
	if err != nil {
		return nil, err
	}
	return qemu{opened, p.deadlines}, nil
}

type qemu struct {
	*process.Process
	deadlines *deadline.Thread
}

func (q qemu) Arm(at grace.Mono) (agent.Armed, error) {
	pidfd, err := q.Duplicate()
	if err != nil {
		return nil, err
	}
	return q.deadlines.Arm(pidfd, at), nil
}

func (processes) Watch(pid int) (agent.Watched, error) {
	w, err := process.Watch(pid)
	if err != nil {
		return nil, err
	}
	return w, nil
}
