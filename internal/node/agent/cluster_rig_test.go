package agent

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

// memoryCluster is an API server that the test controls.
type memoryCluster struct {
	mu      sync.Mutex
	synced  bool
	vmi     *grace.VMI
	pods    []grace.Pod
	others  map[string][]grace.Pod // of VMs that have their own
	fate    grace.Fate
	err     error
	takes   time.Duration
	asked   int
	settles time.Duration // until Events survive the agent
	events  []Event
	watched string // the pod whose launcher directory is watched
}

func (c *memoryCluster) VMI(string, string) grace.VMI {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.vmi != nil:
		return *c.vmi
	case c.synced:
		return grace.VMI{State: grace.VMIAbsent}
	default:
		return grace.VMI{}
	}
}

func (c *memoryCluster) Pods(_, name string) []grace.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.others[name]; own != nil {
		return slices.Clone(own)
	}
	return append([]grace.Pod(nil), c.pods...)
}

func (c *memoryCluster) Confirm(ctx context.Context, _, _, _ string, _ time.Time) (grace.Fate, error) {
	c.mu.Lock()
	c.asked++
	fate, err, takes := c.fate, c.err, c.takes
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return grace.FateUnknown, ctx.Err()
	case <-time.After(takes):
		return fate, err
	}
}

func (c *memoryCluster) Report(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, old := range c.events {
		if old.Reason == e.Reason && old.Key == e.Key {
			return
		}
	}
	c.events = append(c.events, e)
}

func (c *memoryCluster) watch(_, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = pod
}

func (c *memoryCluster) FlushEvents(ctx context.Context, _, _ string) {
	select {
	case <-ctx.Done():
	case <-time.After(c.settles):
	}
}

func (c *memoryCluster) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var reasons []string
	for _, e := range c.events {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

func (c *memoryCluster) asks() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

const (
	uid  = "uid-1"
	pod1 = "pod-1"
)

var born = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// inCluster runs a test with an agent and an API server that shows a VMI with
// this grace period and its launcher pod, and a guest.
func inCluster(t *testing.T, seconds string, test func(*rig, *memoryCluster)) {
	t.Helper()
	inBubble(t, func(r *rig) {
		r.stop()
		c := &memoryCluster{synced: true, fate: grace.FateHere}
		c.vmi = &grace.VMI{State: grace.VMIPresent, UID: uid, Created: born, Grace: seconds, DeletingAt: grace.Never}
		c.pods = []grace.Pod{{UID: pod1, VMI: uid, Created: born, DeletingAt: grace.Never, KillAt: grace.Never, GracePeriod: time.Hour}}
		r.cluster = c
		r.dirs = map[string]*memoryDir{}
		r.pod(pod1, uid)
		r.run()
		r.hv.Start(fake.Guest{Name: domain})
		r.after(time.Second)
		test(r, c)
	})
}

// pod makes the launcher directory of a pod, with a shim that lives.
func (r *rig) pod(pod, vmi string) *memoryDir {
	d := r.dir(pod)
	shim := r.hv.StartProcess("shim")
	r.set(pod, func(v *watch.View) {
		v.Registered, v.Locked, v.Holder.PID, v.Holder.File = true, true, shim.PID(), 77
		v.UID, v.Readable = vmi, true
	})
	return d
}

// podDir returns the launcher directory of a pod; it is missing unless the test made it.
func (r *rig) podDir(pod string) *memoryDir {
	if r.dirs[pod] == nil {
		return &memoryDir{}
	}
	return r.dirs[pod]
}

// sigterm does what kubelet does to a launcher: its shim writes the trigger.
func (r *rig) sigterm(pod string) {
	r.set(pod, func(v *watch.View) {
		v.Trigger, v.TriggerUID, v.TriggerID = true, v.UID, grace.TriggerID{Inode: uint64(time.Since(r.start)) + 1}
	})
	r.agent.LauncherChanged(domain)
	synctest.Wait()
}

// api changes what the API server shows, and tells the agent.
func (r *rig) api(change func(*memoryCluster)) {
	r.cluster.mu.Lock()
	change(r.cluster)
	r.cluster.mu.Unlock()
	r.agent.ClusterChanged("ns", "vm")
	synctest.Wait()
}

// listed plays the first list of the API server, which names no VMI.
func (r *rig) listed() {
	r.cluster.mu.Lock()
	r.cluster.synced = true
	r.cluster.mu.Unlock()
	r.agent.ClusterChanged("", "")
	synctest.Wait()
}

func (r *rig) record() (grace.Record, bool) { return r.cache.get(domain) }

// startedAs asserts that a shutdown runs for this cause, begun at this time.
func (r *rig) startedAs(cause grace.Cause, start grace.Mono, length time.Duration) {
	r.t.Helper()
	rec, ok := r.record()
	if !ok || rec.Shutdown.Cause != cause || rec.Shutdown.Start != start || rec.Shutdown.Deadline != start.Add(length) {
		r.t.Errorf("record %v: %q from %v to %v; want %s from %v for %v", ok, rec.Shutdown.Cause,
			rec.Shutdown.Start, rec.Shutdown.Deadline, cause, start, length)
	}
}

// untouched asserts that the VM runs and is guarded.
func (r *rig) untouched() {
	r.t.Helper()
	rec, ok := r.record()
	if !ok || rec.ShuttingDown() {
		r.t.Errorf("record %v, shutdown %+v; want a VM that runs", ok, rec.Shutdown)
	}
	for _, op := range []fake.Op{fake.OpAsk, fake.OpDestroy} {
		if at := r.when(op, domain); len(at) > 0 {
			r.t.Errorf("%v at %v; the VM must be left alone", op, at)
		}
	}
}
