package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	fakedeadline "github.com/vmgrace/vmgrace/internal/node/deadline/fake"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

const domain = "ns_vm"

// rig is an agent in a bubble of virtual time; the test controls all around it.
type rig struct {
	t      *testing.T
	policy grace.Policy
	hv     *fake.Hypervisor
	cache  *memoryCache
	dirs   map[string]*memoryDir
	meter  *memoryMeter
	agent  *Agent
	log    slog.Handler
	start  time.Time
	wall   atomic.Int64 // by how much the wall clock was set
	pause  atomic.Int64 // how long the process is held up before it reads that
	stop   func()
	full   atomic.Bool  // no file can be opened
	deaf   atomic.Bool  // libvirt's events are lost
	reads  atomic.Int64 // how often the clock was read
	sends  atomic.Int64 // how long a signal takes
	unread bool         // the records cannot be read when the agent starts

	cluster *memoryCluster    // nil: standalone
	node    *memoryNode       // nil: its shutdowns are not delayed
	driver  hypervisor.Driver // nil: hv
}

// inBubble runs a test in virtual time with a fresh rig.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, hv: fake.New(), start: time.Now(), log: slog.DiscardHandler,
			cache: &memoryCache{records: map[string]grace.Record{}},
			dirs:  map[string]*memoryDir{}, meter: &memoryMeter{counts: map[string]int{}},
			policy: grace.Policy{BootID: "boot", DefaultPeriod: 30 * time.Second, RetryInterval: 5 * time.Second, AgentTimeout: 5 * time.Second,
				UseAgent: true, DestroyTimeout: 10 * time.Second},
		}
		r.dir(domain)
		r.run()
		defer func() { r.stop() }()
		test(r)
	})
}

// Now is a monotonic clock that is an hour old at the start of the bubble.
func (r *rig) Now() grace.Mono {
	r.reads.Add(1)
	return grace.Mono(time.Hour + time.Since(r.start))
}

func (r *rig) Wall() time.Time {
	time.Sleep(time.Duration(r.pause.Load()))
	return time.Now().Add(time.Duration(r.wall.Load()))
}

func (r *rig) setWall(by time.Duration) { r.wall.Store(int64(by)) }

func (r *rig) Open(pid int, start uint64) (Process, error) {
	p, err := r.hv.OpenProcess(pid, start)
	if err != nil {
		return nil, err
	}
	return qemu{p, r}, nil
}

type qemu struct {
	*fake.Process
	r *rig
}

func (q qemu) Signal(s unix.Signal) error {
	time.Sleep(time.Duration(q.r.sends.Load()))
	return q.Process.Signal(s)
}

func (q qemu) Arm(at grace.Mono) (Armed, error) {
	if q.r.full.Load() {
		return nil, unix.EMFILE
	}
	return fakedeadline.Arm(q, at, q.r.Now), nil
}

func (r *rig) Watch(pid int) (Watched, error) {
	p, err := r.hv.WatchProcess(pid)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// run starts an agent on what the cache holds. stop ends it as SIGKILL does: all that it
// has in memory is lost.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	cfg := Config{
		Policy: r.policy, Hypervisor: r.hv, Cache: r.cache,
		Processes: r, Clock: r, Meter: r.meter,
		Launcher: func(namespace, name, _ string) Launcher { return r.dir(grace.DomainName(namespace, name)) },
	}
	if r.cluster != nil {
		cfg.Cluster = r.cluster
		cfg.Launcher = func(_, _, pod string) Launcher { return r.podDir(pod) }
		cfg.Watch = r.cluster.watch
	}
	if r.driver != nil {
		cfg.Hypervisor = r.driver
	}
	if r.node != nil {
		cfg.Inhibitor, cfg.NodeShutdown, cfg.SaveNodeShutdown = r.node, r.node.recalls(), r.node.keep
	}
	r.agent = New(cfg, slog.New(r.log))
	agent := r.agent
	if !r.unread {
		agent.Guard(r.cache.all())
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := agent.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	running.Go(func() {
		_ = r.hv.Run(ctx, func(e hypervisor.Event) {
			if !r.deaf.Load() {
				agent.DomainChanged(e)
			}
		})
	})
	if r.cluster != nil {
		agent.ClusterChanged("ns", "vm")
	} else {
		for name := range r.dirs {
			agent.LauncherChanged(name)
		}
	}
	r.stop = func() { cancel(); r.cache.release(); running.Wait() }
	synctest.Wait()
}

func (r *rig) restart() { r.stop(); r.run() }

func (r *rig) dir(name string) *memoryDir {
	if r.dirs[name] == nil {
		r.dirs[name] = &memoryDir{view: watch.View{Directory: grace.Directory{Present: true}}}
		if r.cluster != nil {
			r.dirs[name].pod = name
		}
	}
	return r.dirs[name]
}

// guarded starts a guest with a shim that states a grace period.
func (r *rig) guarded(g fake.Guest, seconds string) (grace.Instance, *fake.Process) {
	r.t.Helper()
	shim := r.hv.StartProcess("shim")
	r.change(g.Name, func(v *watch.View) {
		v.Registered, v.Locked, v.Holder.PID, v.Holder.File = true, true, shim.PID(), 77
		v.UID, v.Readable, v.Grace = "uid-"+g.Name, true, seconds
	})
	i := r.hv.Start(g)
	r.after(time.Second)
	if rec, ok := r.cache.get(g.Name); !ok || rec.Instance != i {
		r.t.Fatalf("%s is not guarded: %+v", g.Name, rec)
	}
	return i, shim
}

// set changes a launcher directory without an event.
func (r *rig) set(name string, f func(*watch.View)) {
	d := r.dir(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.view)
}

// change changes a launcher directory and lets the agent know.
func (r *rig) change(name string, f func(*watch.View)) {
	r.set(name, f)
	r.agent.LauncherChanged(name)
	synctest.Wait()
}

func (r *rig) trigger(name string) {
	r.t.Helper()
	r.change(name, func(v *watch.View) {
		v.Trigger, v.TriggerUID, v.TriggerID = true, v.UID, grace.TriggerID{Inode: uint64(time.Since(r.start)) + 1}
	})
}

// after lets virtual time pass.
func (r *rig) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// stoppedAs asserts the outcome and that no trace is left.
func (r *rig) stoppedAs(name string, cause grace.Cause, outcome grace.Outcome) {
	r.t.Helper()
	s := r.dir(name).said()
	if s.Phase != grace.Stopped || s.Cause != cause || s.Outcome != outcome {
		r.t.Errorf("status.json: %s %s %s; want Stopped %s %s", s.Phase, s.Cause, s.Outcome, cause, outcome)
	}
	if _, ok := r.cache.get(name); ok {
		r.t.Error("the record is still there")
	}
	if r.dir(name).look().Trigger {
		r.t.Error("the trigger is still there")
	}
}

// when returns how long after the rig's start each call of a kind came.
func (r *rig) when(op fake.Op, name string) []time.Duration {
	var at []time.Duration
	for _, c := range r.hv.Calls() {
		if c.Op == op && c.Domain == name {
			at = append(at, c.At.Sub(r.start))
		}
	}
	return at
}

// memoryCache is a cache whose disk can fail or hang.
type memoryCache struct {
	mu      sync.Mutex
	records map[string]grace.Record
	fails   error
	hang    chan struct{}
	takes   time.Duration
	puts    int
}

func (c *memoryCache) Put(r grace.Record) error {
	c.mu.Lock()
	hang, takes := c.hang, c.takes
	c.mu.Unlock()
	if hang != nil {
		<-hang
		return errors.New("the disk was hung")
	}
	time.Sleep(takes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.puts++
	if c.fails == nil {
		c.records[r.Domain()] = r
	}
	return c.fails
}

func (c *memoryCache) Delete(domain string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails == nil {
		delete(c.records, domain)
	}
	return c.fails
}

func (c *memoryCache) get(domain string) (grace.Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[domain]
	return r, ok
}

func (c *memoryCache) all() []grace.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []grace.Record
	for r := range maps.Values(c.records) {
		all = append(all, r)
	}
	return all
}

// take removes a record.
func (c *memoryCache) take(domain string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, domain)
}

func (c *memoryCache) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = err
}

func (c *memoryCache) hangs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hang = make(chan struct{})
}

func (c *memoryCache) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hang != nil {
		close(c.hang)
		c.hang = nil
	}
}

// memoryDir is a launcher directory.
type memoryDir struct {
	pod    string // the launcher pod's UID
	mu     sync.Mutex
	view   watch.View
	err    error
	status grace.Status
	looks  int
	takes  atomic.Int64                    // how long a look takes
	slow   atomic.Int64                    // how long the removal of a trigger takes
	stuck  bool                            // the trigger cannot be removed
	told   func(*watch.View, grace.Status) // what happens when a status is written
}

func (d *memoryDir) Look() (watch.View, error) {
	time.Sleep(time.Duration(d.takes.Load()))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looks++
	view := d.view
	view.Holder.Pod = d.pod
	return view, d.err
}

// breaks makes looks fail, or keeps the trigger.
func (d *memoryDir) breaks(err error, stuck bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.stuck = err, stuck
}

func (d *memoryDir) look() watch.View { v, _ := d.Look(); return v }

func (d *memoryDir) WriteStatus(s grace.Status) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = s
	if d.told != nil {
		d.told(&d.view, s)
	}
	return nil
}

func (d *memoryDir) said() grace.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

func (d *memoryDir) RemoveTrigger(seen grace.TriggerID) error {
	time.Sleep(time.Duration(d.slow.Load()))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stuck {
		return errors.New("read-only file system")
	}
	if seen == d.view.TriggerID {
		d.view.Trigger, d.view.TriggerUID, d.view.TriggerID = false, "", grace.TriggerID{}
	}
	return nil
}

// memoryMeter counts by name.
type memoryMeter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (m *memoryMeter) count(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[name]++
}

func (m *memoryMeter) of(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name]
}

func (m *memoryMeter) Stopped(c grace.Cause, o grace.Outcome, _ time.Duration) {
	m.count("stopped " + string(c) + " " + string(o))
}
func (m *memoryMeter) Reacted(c grace.Cause, _ time.Duration) { m.count("reacted " + string(c)) }
func (m *memoryMeter) Overshot(time.Duration)                 { m.count("overshot") }
func (m *memoryMeter) Asked(mode grace.Mode, result string) {
	m.count("asked " + string(mode) + " " + result)
}
func (m *memoryMeter) Destroyed(via string)   { m.count("destroyed " + via) }
func (m *memoryMeter) Rejected(reason string) { m.count("rejected " + reason) }
