package fake

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// proc is a process of this fake only.
type proc struct {
	name   string
	pid    int
	start  uint64
	domain *domain // nil: not a QEMU
	dying  bool
	done   chan struct{}
	// exiting means that it ends later, whatever is sent to it.
	exiting bool
}

// spawn makes a process. Pids and start times are never reused.
func (h *Hypervisor) spawn(name string) *proc {
	h.serial++
	p := &proc{name: name, pid: 1<<22 + h.serial, start: uint64(1000 * h.serial), done: make(chan struct{})}
	h.procs[p.pid] = p
	return p
}

// StartProcess starts a process that is not a QEMU, such as a launcher's shim. In the
// journal its name replaces the domain.
func (h *Hypervisor) StartProcess(name string) *Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &Process{h: h, p: h.spawn(name)}
}

// OpenProcess is process.Open for the processes of this hypervisor.
func (h *Hypervisor) OpenProcess(pid int, start uint64) (*Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.procs[pid]
	switch {
	case start == 0:
		return nil, fmt.Errorf("pid %d: %w", pid, process.ErrNoStart)
	case p == nil || p.gone() || p.start != start:
		return nil, fmt.Errorf("pid %d: %w", pid, process.ErrGone)
	}
	return &Process{h: h, p: p}, nil
}

// WatchProcess is process.Watch for the processes of this hypervisor.
func (h *Hypervisor) WatchProcess(pid int) (*Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.procs[pid]
	if p == nil || p.gone() {
		return nil, fmt.Errorf("pid %d: %w", pid, process.ErrGone)
	}
	return &Process{h: h, p: p}, nil
}

// Process has the methods of *process.Process.
type Process struct {
	h *Hypervisor
	p *proc
}

// PID is the process's pid.
func (p *Process) PID() int { return p.p.pid }

// StartTime is when it started.
func (p *Process) StartTime() uint64 { return p.p.start }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.p.done }

// Gone reports whether the process has ended.
func (p *Process) Gone() bool { return p.p.gone() }

// Exiting reports whether it is exiting.
func (p *Process) Exiting() bool {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	return p.p.exiting
}

// Close does nothing.
func (p *Process) Close() error { return nil }

// Signal fails with process.ErrGone if the process has ended.
func (p *Process) Signal(s unix.Signal) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	p.h.note(Call{Op: OpSignal, Domain: p.p.name, Signal: s})
	if p.p.gone() {
		return fmt.Errorf("pid %d: %w", p.p.pid, process.ErrGone)
	}
	p.p.signal(p.h, s)
	return nil
}

func (p *proc) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// exit is called under the lock.
func (p *proc) exit() {
	if !p.gone() {
		close(p.done)
	}
}

// signal does what the signal does, under the lock.
func (p *proc) signal(h *Hypervisor, s unix.Signal) {
	d := p.domain
	switch {
	case p.gone() || p.exiting || s == 0:
	case d == nil:
		p.exit()
	case s == unix.SIGKILL && !d.Unkillable:
		why := grace.EndCrashed // libvirt reports it as
		if d.destroyed {
			why = grace.EndDestroyed
		}
		h.exit(d, why)
	case s == unix.SIGTERM && !d.Frozen && !d.Unkillable && !p.dying:
		p.dying = true
		if d.Exits == 0 {
			h.exit(d, grace.EndDestroyed)
			return
		}
		time.AfterFunc(d.Exits, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.exit(d, grace.EndDestroyed)
		})
	}
}

// wait reports whether the process ended in time.
func (p *proc) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
	case <-ctx.Done():
	}
	return p.gone()
}
