package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/agent"
	fakedeadline "github.com/vmgrace/vmgrace/internal/deadline/fake"
	"github.com/vmgrace/vmgrace/internal/logs"
	"github.com/vmgrace/vmgrace/internal/metrics"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/pkg/hypervisor/fake"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// A QEMU, and libvirt after it, as measured with the real ones.
const (
	exits   = 50 * time.Millisecond
	lingers = 1500 * time.Millisecond
)

// host is the agent with its surroundings.
type host struct {
	hypervisor *fake.Hypervisor
	watcher    *watch.Watcher
	agent      *agent.Agent
	store      *store
	names      []string
	// One moment by both clocks, to compare the hypervisor's journal with records.
	begin     time.Time
	beginMono grace.Mono
}

func newHost(state, launchers string, log *slog.Logger) (*host, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	cache, _, err := gracecache.Take(durable.Real(), state)
	if err == nil {
		err = cache.MakeWritable()
	}
	if err != nil {
		return nil, err
	}
	h := &host{hypervisor: fake.New(), store: newStore(cache), begin: time.Now(), beginMono: clock{}.Now()}
	h.agent = agent.New(agent.Config{
		Policy: grace.Policy{
			BootID: strings.TrimSpace(string(boot)), RetryInterval: 5 * time.Second, AgentTimeout: 5 * time.Second,
			UseAgent: true, DestroyTimeout: 10 * time.Second, DefaultPeriod: 30 * time.Second,
		},
		Hypervisor: h.hypervisor, Cache: h.store, Processes: processes{h.hypervisor}, Clock: clock{}, Meter: metrics.New(),
		Launcher: func(namespace, name, _ string) agent.Launcher {
			return watch.Directory{Base: launchers, Name: grace.DomainName(namespace, name), Namespace: namespace, VM: name}
		},
	}, log)
	h.agent.Guard(nil)
	h.watcher = watch.NewParent(launchers, logs.Limited(log), h.agent.LauncherChanged)
	return h, nil
}

// start starts guests that hear nothing.
func (h *host) start(vms int) {
	for n := range vms {
		name := grace.DomainName("vmgrace-bench", fmt.Sprintf("vm-%d", n))
		h.hypervisor.Start(fake.Guest{Name: name, Exits: exits, Lingers: lingers})
		h.names = append(h.names, name)
	}
	h.store.expect(vms)
}

func (h *host) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.hypervisor.Run(ctx, h.agent.DomainChanged) })
	group.Go(func() error { return h.watcher.Run(ctx) })
	group.Go(func() error { return h.agent.Run(ctx) })
	return errors.Join(group.Wait(), h.store.cache.Close())
}

// late is how long after its deadline each VM's process got the first SIGTERM.
func (h *host) late() ([]time.Duration, error) {
	first := map[string]grace.Mono{}
	for _, c := range h.hypervisor.Calls() {
		if _, known := first[c.Domain]; !known && c.Op == fake.OpSignal && c.Signal == unix.SIGTERM {
			first[c.Domain] = h.beginMono.Add(c.At.Sub(h.begin))
		}
	}
	var late []time.Duration
	for _, name := range h.names {
		at, signalled := first[name]
		deadline := h.store.deadlines[name]
		if !signalled || deadline == 0 {
			return nil, fmt.Errorf("%s: signalled %t, deadline %d", name, signalled, deadline)
		}
		late = append(late, at.Sub(deadline))
	}
	return late, nil
}

// store is the grace cache, and remembers the deadlines that went into it.
type store struct {
	cache   *gracecache.Store
	guarded chan struct{} // closed once as many VMs as expected have a record

	mu        sync.Mutex
	missing   int
	deadlines map[string]grace.Mono // 0: guarded, no shutdown yet
}

func newStore(cache *gracecache.Store) *store {
	return &store{cache: cache, guarded: make(chan struct{}), deadlines: map[string]grace.Mono{}}
}

func (s *store) expect(vms int) {
	if s.missing = vms; vms == 0 {
		close(s.guarded)
	}
}

// Put implements agent.Cache.
func (s *store) Put(r grace.Record) error {
	if err := s.cache.Put(r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.deadlines[r.Domain()]; !known {
		if s.missing--; s.missing == 0 {
			close(s.guarded)
		}
	}
	s.deadlines[r.Domain()] = r.Shutdown.Deadline
	return nil
}

// Delete implements agent.Cache.
func (s *store) Delete(domain string) error { return s.cache.Delete(domain) }

// processes are the hypervisor's QEMUs and the node's real shims.
type processes struct{ hypervisor *fake.Hypervisor }

func (p processes) Open(pid int, start uint64) (agent.Process, error) {
	qemu, err := p.hypervisor.OpenProcess(pid, start)
	if err != nil {
		return nil, err
	}
	return armable{qemu}, nil
}

type armable struct{ *fake.Process }

func (a armable) Arm(at grace.Mono) (agent.Armed, error) {
	return fakedeadline.Arm(a, at, clock{}.Now), nil
}

func (processes) Watch(pid int) (agent.Watched, error) {
	shim, err := process.Watch(pid)
	if err != nil {
		return nil, err
	}
	return shim, nil
}

// clock is CLOCK_MONOTONIC, as in node-agent.
type clock struct{}

func (clock) Now() grace.Mono {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail: clock_gettime(2)
	return grace.Mono(t.Nano())
}

func (clock) Wall() time.Time { return time.Now() }
