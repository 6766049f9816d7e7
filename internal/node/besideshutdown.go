package node

import (
	"context"
	"errors"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/hold"
	"github.com/vmgrace/vmgrace/internal/node/besidekubevirt/reboot"
	"github.com/vmgrace/vmgrace/internal/node/kube"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// passShutdownsOn has the node's launchers told of its shutdown, which is delayed for them.
func (n *besideNode) passShutdownsOn(ctx context.Context) {
	file := nodeShutdown{n.StateDir, n.boot}
	cluster := kube.Beside{Source: n.vmis}
	n.handler = reboot.NewHandler(cluster.HandlerRuns, n.vmis.Report, clock{}, n.log)
	config := agent.NodeConfig{Inhibitor: n.inhibitor(n.log), Clock: clock{}, Report: n.vmis.Report, Save: file.keep, Log: n.log}
	if n.records.read.Load() { // else the disk hangs
		config.Kept = file.recall(ctx, n.log)
	}
	n.shutdown = reboot.New(reboot.Config{
		NodeConfig: config, Node: reboot.Local{},
		Launchers: func() ([]hold.Launcher, bool) { return cluster.Launchers(), cluster.Listed() },
		Longest:   func() time.Duration { return longest(cluster) },
		Begun:     func(underWay bool) { n.keeper.NodeShutdown(underWay); n.handler.Announced(underWay) },
	})
	n.meter.NodeShutdown(n.shutdown.View)
	n.meter.HandlerRuns(n.handler.Runs)
}

// longest returns the longest grace period of the node's VMs, 0 without VMs.
func longest(cluster kube.Beside) time.Duration {
	all := time.Duration(0)
	for _, l := range cluster.Launchers() {
		period, err := grace.ParseSeconds(cluster.VM(l.Namespace, l.VM).Grace)
		if err != nil && !errors.Is(err, grace.ErrTooLong) {
			period = hold.DefaultPeriod
		}
		all = max(all, period)
	}
	return all
}
