package agent

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/fake"
)

// BenchmarkEventToAction measures from the hint of a trigger to the request at the
// hypervisor, with all outside of the agent in memory.
func BenchmarkEventToAction(b *testing.B) {
	r := &rig{
		hv: fake.New(), start: time.Now(), dirs: map[string]*memoryDir{},
		cache: &memoryCache{records: map[string]grace.Record{}}, meter: &memoryMeter{counts: map[string]int{}},
		policy: grace.Policy{BootID: "boot", RetryInterval: time.Hour, DestroyTimeout: time.Hour, DefaultPeriod: time.Hour},
	}
	var mu sync.Mutex // of dirs: each keeper asks for its own
	dir := func(name string) *memoryDir {
		mu.Lock()
		defer mu.Unlock()
		return r.dir(name)
	}
	agent := New(Config{
		Policy: r.policy, Hypervisor: r.hv, Cache: r.cache, Processes: r, Clock: r, Meter: r.meter,
		Launcher: func(namespace, name, _ string) Launcher { return dir(grace.DomainName(namespace, name)) },
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = agent.Run(ctx) })
	defer running.Wait()
	defer cancel()

	var names []string
	guard := func(n int) {
		name := fmt.Sprintf("ns_vm-%d", n)
		names = append(names, name)
		dir(name).arrive(false)
		r.hv.Start(fake.Guest{Name: name})
		agent.LauncherChanged(name)
		until(b, func() bool { _, ok := r.cache.get(name); return ok })
	}
	for n := range b.N {
		guard(n)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, name := range names {
		dir(name).arrive(true)
		agent.LauncherChanged(name)
		until(b, func() bool { return r.meter.of("reacted "+string(grace.LauncherSignal)) > 0 })
		r.meter.reset()
	}
}

// arrive makes a launcher directory without a shim, then with a trigger.
func (d *memoryDir) arrive(trigger bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.view = watch.View{Directory: grace.Directory{Present: true, Trigger: trigger}}
	if trigger {
		d.view.TriggerID.Inode = 1
	}
}

func (m *memoryMeter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.counts)
}

func until(b *testing.B, cond func() bool) {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			b.Fatal("nothing happens")
		}
	}
}
