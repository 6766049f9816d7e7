package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// The grace period of the simulated VMs, and when after it the end is usually
// known: libvirt shows a domain for a while when its QEMU has gone.
const (
	shortGrace = 10 * time.Second
	ends       = 3 * time.Second
)

// adopted is how long an agent has to come to rest once it has all VMs.
const adopted = 5 * time.Second

// simulateMargin is how much longer than planned a trial may take in all.
const simulateMargin = 5 * time.Minute

// trial is what a number of simulated VMs showed, in seconds: how late each
// was signalled, how late as many timers of the floor woke meanwhile, and the
// agent's processor time from the first SIGTERM of a launcher to the last end.
type trial struct {
	late, floor []float64
	cpu         float64
}

// span is how long the processor time is counted, for any number of VMs alike.
func (b *bench) span() time.Duration { return b.window + shortGrace + 2*ends }

// simulate lets so many VMs end, with deadlines at random over the window.
func (b *bench) simulate(vms int) (t trial) {
	row := &stage{ctx: b.ctx}
	round := &bench{stage: row, options: b.options}
	b.must(row.play(func() { t = round.try(vms) }))
	return t
}

func (b *bench) try(vms int) (t trial) {
	dir := b.temp()
	launchers := b.launchers(dir, vms)
	ctx, cancel := context.WithTimeout(b.Context(), b.span()+simulateMargin)
	defer cancel()
	agent, lines := b.simulated(ctx, b.temp(), dir, vms)
	b.pause(adopted)

	var group errgroup.Group
	begin, before := time.Now(), b.cpu(agent.Process.Pid)
	for _, l := range launchers {
		group.Go(func() error { return l.live(ctx, rand.N(b.window)) })
	}
	group.Go(func() (err error) {
		argv := b.floor("timers", strconv.Itoa(vms), strconv.FormatInt(b.window.Nanoseconds(), 10))
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		if err == nil {
			t.floor, err = nanoseconds(bufio.NewScanner(bytes.NewReader(out)))
		}
		return err
	})
	b.must(group.Wait())
	b.pause(b.span() - time.Since(begin))
	t.cpu = b.cpu(agent.Process.Pid) - before

	b.must(agent.Process.Signal(unix.SIGTERM))
	late, err := nanoseconds(lines)
	b.must(errors.Join(err, agent.Wait()))
	if t.late = late; len(late) != vms || vms > 0 && slices.Min(late) < 0 {
		b.Fatalf("%d of %d simulated VMs were signalled, the earliest %v s after its deadline", len(late), vms, slices.Min(append(late, 0)))
	}
	return t
}

// simulated starts the agent and waits until it guards every VM.
func (b *bench) simulated(ctx context.Context, state, dir string, vms int) (*exec.Cmd, *bufio.Scanner) {
	log, err := os.CreateTemp(b.dir, "vmgrace-simulate-*.log")
	b.must(err)
	b.Cleanup(func() {
		b.must(log.Close())
		if b.Failed() {
			b.Logf("the log of the simulated agent stays in %s", log.Name())
			return
		}
		b.must(os.Remove(log.Name()))
	})
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "simulate"), state, dir, strconv.Itoa(vms))
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	b.must(err)
	b.must(cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // where it still runs
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		b.Fatalf("%d simulated VMs were not guarded: %v", vms, cmd.Wait())
	}
	return cmd, lines
}

// launcher is a shim's end of a launcher directory. All are in the bench's
// process, which the agent takes for the holder of each.
type launcher struct {
	*signals.Sender
	dir string
}

func (b *bench) launchers(parent string, n int) []launcher {
	b.Helper()
	all := make([]launcher, 0, n)
	for i := range n {
		vm := signals.VM{
			Namespace: "vmgrace-bench", Name: fmt.Sprintf("vm-%d", i), UID: fmt.Sprintf("b7c6a1d2-0000-4000-8000-%012d", i),
			Grace: strconv.Itoa(int(shortGrace.Seconds())),
		}
		l := launcher{dir: filepath.Join(parent, grace.DomainName(vm.Namespace, vm.Name))}
		b.must(os.Mkdir(l.dir, 0o755))
		l.Sender = signals.NewSender(l.dir, vm)
		b.must(l.Register())
		b.Cleanup(func() { b.must(l.Withdraw()) })
		all = append(all, l)
	}
	return all
}

// live is a launcher that hears SIGTERM after a while, waits for the end of its VM
// and leaves with its directory.
func (l launcher) live(ctx context.Context, after time.Duration) error {
	if err := wait(ctx, after); err != nil {
		return err
	}
	if _, err := l.Send("SIGTERM", time.Now()); err != nil {
		return err
	}
	for pause := shortGrace + ends; ; pause = time.Second {
		if err := wait(ctx, pause); err != nil {
			return fmt.Errorf("%s: nobody says that the VM is gone: %w", l.dir, err)
		}
		if stopped, err := l.Stopped(); err != nil {
			return err
		} else if stopped {
			break
		}
	}
	return errors.Join(l.Withdraw(), os.RemoveAll(l.dir))
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nanoseconds reads one time a line, in seconds.
func nanoseconds(lines *bufio.Scanner) ([]float64, error) {
	var all []float64
	for lines.Scan() {
		ns, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			return nil, fmt.Errorf("a time in nanoseconds: %w", err)
		}
		all = append(all, ns/1e9)
	}
	return all, lines.Err()
}
