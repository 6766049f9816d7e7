//go:build failpoint

package failpoint

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// around is the point before a call; its result is the one after it.
func (p *points) around(name string) func() {
	p.At(name)
	return func() { p.At(name + ".done") }
}

type hypervisors struct {
	hypervisor.Driver
	*points
}

func (h hypervisors) List(ctx context.Context, ours func(string) bool) ([]hypervisor.Domain, error) {
	defer h.around("list")()
	return h.Driver.List(ctx, ours)
}

func (h hypervisors) Get(ctx context.Context, name string) (hypervisor.Domain, error) {
	defer h.around("get")()
	return h.Driver.Get(ctx, name)
}

func (h hypervisors) Ask(ctx context.Context, name string, i grace.Instance, m grace.Mode) error {
	defer h.around("ask")()
	return h.Driver.Ask(ctx, name, i, m)
}

func (h hypervisors) Resume(ctx context.Context, name string, i grace.Instance) error {
	defer h.around("resume")()
	return h.Driver.Resume(ctx, name, i)
}

func (h hypervisors) Destroy(ctx context.Context, name string, i grace.Instance) error {
	defer h.around("destroy")()
	return h.Driver.Destroy(ctx, name, i)
}

func (h hypervisors) Ended(ctx context.Context, name string, i grace.Instance) (grace.End, error) {
	defer h.around("ended")()
	return h.Driver.Ended(ctx, name, i)
}

type processes struct {
	agent.Processes
	*points
}

func (p processes) Open(pid int, start uint64) (agent.Process, error) {
	defer p.around("open-process")()
	found, err := p.Processes.Open(pid, start)
	if err != nil {
		return nil, err
	}
	return process{found, p.points}, nil
}

func (p processes) Watch(pid int) (agent.Watched, error) {
	defer p.around("open-process")()
	return p.Processes.Watch(pid)
}

type process struct {
	agent.Process
	*points
}

func (p process) Signal(s unix.Signal) error {
	defer p.around(unix.SignalName(s))()
	return p.Process.Signal(s)
}

// Arm puts the points of the signal around its report. A process that dies before the
// deadline's thread has sent it looks like one that dies at an earlier point.
func (p process) Arm(at grace.Mono) (agent.Armed, error) {
	inner, err := p.Process.Arm(at)
	if err != nil {
		return nil, err
	}
	a := armed{inner, make(chan deadline.Sent, 1)}
	go func() {
		s := <-inner.Sent()
		p.around(unix.SignalName(unix.SIGTERM))()
		a.sent <- s
	}()
	return a, nil
}

type armed struct {
	agent.Armed
	sent chan deadline.Sent
}

func (a armed) Sent() <-chan deadline.Sent { return a.sent }

type launchers struct {
	agent.Launcher
	*points
}

func (l launchers) Look() (watch.View, error) {
	defer l.around("look")()
	return l.Launcher.Look()
}

func (l launchers) WriteStatus(s grace.Status) error {
	defer l.around("status-" + string(s.Phase))()
	return l.Launcher.WriteStatus(s)
}

func (l launchers) RemoveTrigger(seen grace.TriggerID) error {
	defer l.around("remove-trigger")()
	return l.Launcher.RemoveTrigger(seen)
}

type clusters struct {
	agent.Cluster
	*points
}

func (c clusters) Confirm(ctx context.Context, namespace, name, uid string, created time.Time) (grace.Fate, error) {
	defer c.around("confirm")()
	return c.Cluster.Confirm(ctx, namespace, name, uid, created)
}

func (c clusters) Report(e agent.Event) {
	defer c.around("report-" + e.Reason)()
	c.Cluster.Report(e)
}

func (c clusters) FlushEvents(ctx context.Context, namespace, name string) {
	defer c.around("flush-events")()
	c.Cluster.FlushEvents(ctx, namespace, name)
}
