package inpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// A launcher's claim costs a search among all processes of the node. So a few claims are
// checked at once, then one every so often, whatever they say. One limit is per VM, one
// is for all VMs of the node.
const (
	identifyEvery     = time.Second
	identifyBurst     = 5
	nodeIdentifyEvery = 50 * time.Millisecond
	nodeIdentifyBurst = 100
)

// reasonProcess is why a claim was rejected.
const reasonProcess = "vm_process"

// claim is what a launcher states about its VM process: one registration, file, names one
// process.
type claim struct {
	holder, pid int
	file        uint64
}

// refusal is a claim that was refused; why is nil if its process has ended.
type refusal struct {
	claim

	why error
}

// claim returns the claim in a view. open means that the launcher lives and the process
// was not found by this claim. The caller holds the lock.
func (v *vm) claim(view *watch.View) (says claim, open bool) {
	says = claim{view.Holder.PID, view.PID, view.Holder.File}
	return says, v.claims && view.Locked && says.holder > 0 && says.pid > 0 && says != v.found
}

// budget limits checks: burst at once, then one every so often.
type budget struct {
	every time.Duration
	burst int
	paid  time.Time // until when it is used up
}

// wait returns how long the next check has to wait, 0 or less if it need not.
func (b *budget) wait(now time.Time) time.Duration {
	if b.paid.Before(now) {
		b.paid = now
	}
	return b.paid.Sub(now) - time.Duration(b.burst-1)*b.every
}

func (b *budget) pay() { b.paid = b.paid.Add(b.every) }

// turn reports whether to check a claim now, or how much later to look at it again. A VM
// has one place at a time among those of the node. The caller holds the VM's lock.
func (v *vm) turn(now time.Time) (due bool, later time.Duration) {
	if v.place.IsZero() {
		if later = v.budget.wait(now); later <= 0 {
			v.budget.pay()
			v.place = now.Add(v.driver.turn(now))
		}
	}
	if !v.place.IsZero() {
		later = v.place.Sub(now)
	}
	switch {
	case later <= 0:
		v.place = time.Time{}
		return true, 0
	case v.waiting:
		return false, 0
	}
	v.waiting = true
	return false, later
}

// turn gives a VM its place among all of the node.
func (d *Driver) turn(now time.Time) (later time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	later = d.budget.wait(now)
	d.budget.pay()
	return max(later, 0)
}

// lookAgain asks for a look at the VM after some time.
func (v *vm) lookAgain(after time.Duration) {
	v.driver.await(func(closed <-chan struct{}) {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
			v.mu.Lock()
			v.waiting = false
			v.mu.Unlock()
			v.driver.tell(hypervisor.Event{Name: v.name, UUID: v.uuid})
		case <-closed:
		}
	})
}

// reject adds the refusal of a claim to the view, as long as the claim stands.
func (v *vm) reject(says claim, view *watch.View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.claims && v.refused.claim == says && v.refused.why != nil {
		view.Rejected = append(view.Rejected, watch.Rejection{Reason: reasonProcess, Err: v.refused.why})
	}
}

func (v *vm) identify(says claim) {
	p, err := identify(says.holder, says.pid, v.pod)
	v.mu.Lock()
	v.refused = refusal{}
	if err != nil {
		v.refused = refusal{claim: says}
		if !errors.Is(err, process.ErrGone) {
			v.refused.why = fmt.Errorf("vm.json names a process that is not its VM's: %w", err)
		}
		v.mu.Unlock()
		return
	}
	if v.process != nil && !v.process.Gone() { // another look was first
		v.mu.Unlock()
		_ = p.Close() // nothing was done with it
		return
	}
	was := v.process
	i := grace.Instance{UUID: v.uuid, PID: p.PID(), Start: p.StartTime()}
	v.process, v.instance, v.destroyed, v.found, v.moves = p, i, false, says, v.moves.next()
	v.mu.Unlock()
	if was != nil {
		_ = was.Close() // it has ended
	}
	if v.driver.await(func(closed <-chan struct{}) {
		select {
		case <-p.Done():
			ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
			end, _ := v.ended(ctx, i) // reported as EndUnknown if unknown
			cancel()
			v.driver.tell(hypervisor.Event{Name: v.name, UUID: i.UUID, End: end})
		case <-closed:
		}
	}) {
		v.driver.tell(hypervisor.Event{Name: v.name, UUID: i.UUID})
	}
}
