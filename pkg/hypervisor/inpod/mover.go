package inpod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// Mover moves VMs whose process is in their launcher pod, by requests to their launchers. Any
// goroutine may call its methods.
type Mover struct {
	*Driver

	cpus string // what the kernel says of this host's CPUs
}

// Mover returns a mover of this driver's VMs.
func (d *Driver) Mover() *Mover { return &Mover{Driver: d, cpus: "/proc/cpuinfo"} }

// Look returns what a domain is here. It asks the launcher what the guest is doing unless that
// is known. "Absent" is what a launcher directory shows, or what the API server says of the pod.
func (m *Mover) Look(ctx context.Context, name string) (hypervisor.Stay, grace.Instance, error) {
	v := m.vm(name)
	if v == nil && m.launchers().None(name) {
		return hypervisor.StayAbsent, grace.Instance{}, nil
	}
	if v == nil {
		return hypervisor.StayUnknown, grace.Instance{}, failed("look at", name, errNotSeen)
	}
	stay, i, err := v.stay(ctx)
	return stay, i, failed("look at", name, err)
}

// Migrate makes the launcher send its guest through the agent's socket, and returns when that
// is over.
func (m *Mover) Migrate(ctx context.Context, o hypervisor.Outgoing) error {
	v, err := m.same(ctx, o.Domain, o.Instance)
	if err == nil {
		err = v.send(ctx, o)
	}
	return failed("migrate", o.Domain, err)
}

// Progress fails with hypervisor.ErrState without a running job.
func (m *Mover) Progress(ctx context.Context, name string, i grace.Instance) (hypervisor.Progress, error) {
	v, err := m.sending(ctx, name, i)
	if err != nil {
		return hypervisor.Progress{}, failed("ask for the progress of", name, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return hypervisor.Progress{Total: v.moves.says.Total, Remaining: v.moves.says.Remaining}, nil
}

// Abort makes the launcher cancel the migration. It fails with hypervisor.ErrState without a job.
func (m *Mover) Abort(ctx context.Context, name string, i grace.Instance) error {
	return m.during(ctx, "abort the migration of", name, i, grace.MoveCancel)
}

// Pause stops the guest while it is being sent. If that fails, its launcher resumes it. It fails
// with hypervisor.ErrState without a job.
func (m *Mover) Pause(ctx context.Context, name string, i grace.Instance) error {
	return m.during(ctx, "pause", name, i, grace.MovePause)
}

// Resume lets a guest run, whatever paused it. It fails with hypervisor.ErrState while a migration
// is under way, or a guest still has to arrive: QEMU would let it run at once.
func (m *Mover) Resume(ctx context.Context, name string, i grace.Instance) error {
	v, err := m.same(ctx, name, i)
	if err == nil {
		err = v.resume(ctx, i)
	}
	return failed("resume", name, err)
}

// Remove ends a domain's process, by force, and returns when it has ended. A missing one is no
// error.
func (m *Mover) Remove(ctx context.Context, name string, i grace.Instance) error {
	v, err := m.same(ctx, name, i)
	if err == nil {
		err = v.remove(ctx, i)
	}
	if errors.Is(err, hypervisor.ErrNotFound) {
		return nil
	}
	return failed("remove", name, err)
}

// Left is always false: no record of QEMU's tells that it was sent.
func (m *Mover) Left(context.Context, string, grace.Instance) (bool, error) { return false, nil }

// Listen makes the agent's socket in the domain's launcher directory.
func (m *Mover) Listen(name string) (net.Listener, error) {
	v := m.vm(name)
	if v == nil {
		return nil, failed("make a socket for", name, hypervisor.ErrNotFound)
	}
	l, err := v.Listen()
	return l, failed("make a socket for", name, err)
}

// Receive makes the launcher connect the QEMU that waits with the agent's socket.
func (m *Mover) Receive(ctx context.Context, name string) error {
	v := m.vm(name)
	if v == nil {
		return failed("receive", name, hypervisor.ErrNotFound)
	}
	i, err := v.now(ctx)
	if err == nil && !v.waits() {
		err = fmt.Errorf("%w: its QEMU waits for no guest", hypervisor.ErrState)
	}
	if err == nil {
		_, err = v.move(ctx, i, grace.MoveRequest{Do: grace.MoveIncoming})
	}
	return failed("receive", name, err)
}

// Machine describes the machine of the domain's QEMU, as its launcher states it, "" while that
// is not known. What the guest sees of the host's CPU is part of it.
func (m *Mover) Machine(name string) string {
	v := m.vm(name)
	if v == nil {
		return ""
	}
	v.mu.Lock()
	is := v.moves.says.Machine
	v.mu.Unlock()
	return machine(is, m.cpus)
}

// during makes a request about a migration that is under way.
func (m *Mover) during(ctx context.Context, op, name string, i grace.Instance, do grace.Move) error {
	v, err := m.sending(ctx, name, i)
	if err == nil && do == grace.MoveCancel {
		v.mu.Lock()
		v.moves.cancels(time.Now())
		v.mu.Unlock()
	}
	if err == nil {
		_, err = v.move(ctx, i, grace.MoveRequest{Do: do})
	}
	return failed(op, name, err)
}

// same returns the VM of an instance. That of another pod is another one, whether or not it runs.
func (m *Mover) same(ctx context.Context, name string, i grace.Instance) (*vm, error) {
	if v := m.vm(name); v != nil && v.uuid != i.UUID {
		return nil, fmt.Errorf("%w: its launcher is %s", hypervisor.ErrOtherInstance, v.uuid)
	}
	return m.Driver.same(ctx, name, i)
}

// sending returns the VM of an instance with a migration under way.
func (m *Mover) sending(ctx context.Context, name string, i grace.Instance) (*vm, error) {
	v, err := m.same(ctx, name, i)
	if err != nil {
		return nil, err
	}
	if err := v.refresh(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.moves.heard || !v.moves.job() {
		return nil, fmt.Errorf("%w: no migration is under way", hypervisor.ErrState)
	}
	return v, nil
}

func (v *vm) waits() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moves.heard && v.moves.waits()
}

func (v *vm) arriving() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moves.arriving()
}

// send makes the launcher send its guest, and waits for the end of that.
func (v *vm) send(ctx context.Context, o hypervisor.Outgoing) error {
	began := time.Now()
	n, err := v.move(ctx, o.Instance, grace.MoveRequest{Do: grace.MoveMigrate, Bandwidth: o.Bandwidth, AutoConverge: o.AutoConverge})
	if err != nil {
		return err
	}
	if err := v.until(ctx, o.Instance, sentEvery, func(m *moves) (bool, error) { return m.sent(n) }); err != nil {
		return err
	}
	v.mu.Lock()
	downtime := v.moves.says.Downtime
	v.mu.Unlock()
	took := time.Since(began)
	if downtime > 0 && downtime <= uint64(took.Milliseconds())+1 { // else it cannot be
		v.driver.tell(hypervisor.Event{Name: v.name, UUID: v.uuid, Stopped: began.Add(took - time.Duration(downtime)*time.Millisecond)})
	}
	return nil
}

func (v *vm) resume(ctx context.Context, i grace.Instance) error {
	if err := v.refresh(ctx); err != nil {
		return err
	}
	v.mu.Lock()
	heard, early := v.moves.heard, v.moves.job() || v.moves.waits() || v.moves.says.State == signals.StateSetup
	v.mu.Unlock()
	switch {
	case !heard:
		return errOther
	case early:
		return fmt.Errorf("%w: its migration is not over", hypervisor.ErrState)
	}
	_, err := v.move(ctx, i, grace.MoveRequest{Do: grace.MoveCont})
	return err
}

// remove ends the process of an instance by force, and notes whether it had been sent.
func (v *vm) remove(ctx context.Context, i grace.Instance) error {
	v.mu.Lock()
	left := v.instance == i && v.moves.left()
	v.moves.removed = v.moves.removed || left
	v.mu.Unlock()
	if err := v.kill(i, unix.SIGKILL); err != nil {
		return err
	}
	v.mu.Lock()
	p := v.process
	v.mu.Unlock()
	if p == nil {
		return nil // the agent ends
	}
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("its process was killed and has not ended: %w", context.Cause(ctx))
	}
}
