package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// restart measures row e: an agent starts with records in mid-grace. Processes that sleep
// stand for their QEMUs, because the agent holds a pidfd of each.
func restart(b *bench) []figure {
	agent := b.node().Agent(b)
	b.mourn(agent.StateDir, agent.LaunchersDir)
	f := figure{
		row: "e", unit: seconds, target: "≤ 200 ms, ≤ 2 × floor",
		what: fmt.Sprintf("restart with %d records: exec → every deadline armed; floor: reads the files", b.records),
	}
	for range b.rounds {
		f.ours = append(f.ours, b.armed(agent.Path, agent.StateDir, agent.LaunchersDir))
		argv := b.floor("read", agent.StateDir)
		begin := time.Now()
		b.must(exec.CommandContext(b.Context(), argv[0], argv[1:]...).Run())
		f.floor = append(f.floor, time.Since(begin).Seconds())
	}
	return []figure{f}
}

// mourn makes records of VMs in mid-grace, with their launcher directories and processes.
func (b *bench) mourn(state, launchers string) {
	store, _, err := gracecache.Take(durable.Real(), state)
	if err == nil {
		err = store.MakeWritable()
	}
	b.must(err)
	var group errgroup.Group
	group.SetLimit(100)
	for n := range b.records {
		cmd := exec.CommandContext(b.Context(), "sleep", "infinity")
		b.must(cmd.Start())
		b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		start, err := process.Start(cmd.Process.Pid)
		b.must(err)
		rec := b.record(n, grace.Instance{UUID: fmt.Sprintf("b7c6a1d2-0000-4000-8000-%012d", n), PID: cmd.Process.Pid, Start: start})
		group.Go(func() error { return store.Put(rec) })
		dir := filepath.Join(launchers, rec.Domain())
		b.must(os.Mkdir(dir, 0o755))
		b.must(os.WriteFile(filepath.Join(dir, "shutdown"), nil, 0o600))
	}
	b.must(group.Wait())
	b.must(store.Close())
}

// armed starts an agent and measures the time until it says that every deadline is armed.
// From then on the timer of each VM is set, and its pidfd is open.
func (b *bench) armed(path, state, launchers string) float64 {
	cmd := b.node().Command(path, "--standalone", "--metrics-address=", "--state-dir", state, "--launchers-dir", launchers,
		"--shutdown-retry-interval=1h")
	log, err := cmd.StderrPipe()
	b.must(err)
	begin := time.Now()
	b.must(cmd.Start())
	said := false
	for lines := bufio.NewScanner(log); !said && lines.Scan(); {
		said = strings.Contains(lines.Text(), fmt.Sprintf("is armed\" shutdowns=%d", b.records))
	}
	took := time.Since(begin).Seconds()
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, log) // the log ends with the process
	_ = cmd.Wait()                  // that signal ended it
	if !said {
		b.Fatalf("the agent did not arm %d deadlines", b.records)
	}
	return took
}

// record makes a record in mid-grace with its deadline in an hour.
func (b *bench) record(n int, i grace.Instance) grace.Record {
	now, wall := b.now(), time.Now()
	return grace.Record{
		Namespace: "vmgrace-bench", Name: fmt.Sprintf("vm-%d", n), UID: fmt.Sprintf("b7c6a1d2-0000-4000-8000-%012d", n), BootID: b.bootID(),
		Period: grace.Period{Length: time.Hour, Source: grace.SourceDefault}, Instance: i,
		Shutdown: grace.Shutdown{Cause: grace.LauncherSignal, Start: now, Deadline: now.Add(time.Hour), StartedAt: wall, DeadlineAt: wall.Add(time.Hour)},
	}
}
