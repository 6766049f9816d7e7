package hold

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// DefaultPeriod is the grace period of VMIs that state none.
const DefaultPeriod = 30 * time.Second

// see takes what the watches show. What they do not show stays as last seen.
func (l *launcher) see() {
	l.shown = false
	for _, p := range l.k.cfg.Cluster.Launchers() {
		if p.UID != l.rec.Pod {
			continue
		}
		l.shown = true
		if p.Deleting || !l.pod.Deleting { // else it was asked for, and the watch is late
			l.pod = p
		}
		if l.rec.UID == "" {
			l.rec.UID = p.VMI
		}
	}
	vm := l.k.cfg.Cluster.VM(l.rec.Namespace, l.rec.Name)
	if !l.mine(&vm) {
		if l.vm.State = vm.State; vm.State == grace.VMIPresent || vm.State == grace.VMIDeleting {
			l.vm.State = grace.VMIAbsent // the one that is shown is another
		}
		return
	}
	l.vm, l.gone = vm, vm.State == grace.VMIDeleting
	l.left = vm.Left
	l.rec.UID, l.rec.VMICreated, l.rec.Moving = vm.UID, vm.Created, vm.Moving
	l.rec.Period = grace.Period{Length: DefaultPeriod, Source: grace.SourceDefault}
	if length, err := grace.ParseSeconds(vm.Grace); err == nil || errors.Is(err, grace.ErrTooLong) {
		l.rec.Period = grace.Period{Length: length, Source: grace.SourceVMI}
	}
}

// mine reports whether a VMI that is shown is this launcher's.
func (l *launcher) mine(vm *VM) bool {
	return (vm.State == grace.VMIPresent || vm.State == grace.VMIDeleting) && (l.rec.UID == "" || vm.UID == l.rec.UID)
}

// facts returns what is known now.
func (l *launcher) facts(now grace.Mono) *facts {
	f := &facts{hold: l.rec.Hold, gone: l.gone, left: l.left, down: l.k.down.Load()}
	mine := l.vm.UID != "" && l.mine(&l.vm)
	f.Signalled, f.SignalledAt = l.signalledAt != 0, l.signalledAt
	f.Pod, f.Holdable, f.KillAt = l.pod.Pod, l.pod.Holdable, l.pod.KillAt
	f.ReasonTimeout, f.Period, f.Moving = reasonTimeout, l.rec.Period.Length, l.rec.Moving
	f.Migration = grace.MigrationUnknown
	switch {
	case mine && l.vm.Moving:
		f.Migration = grace.MigrationOutgoing
	case mine:
		f.Migration = grace.MigrationNone
	case !l.rec.Hold.UnderWay() && f.Pod.HoldReason != "":
		f.Pod.Deleting = false // nobody is held whose VMI is not seen: wait for it
	}
	f.Marked = l.migrates || mine && l.vm.Marked
	f.Unmarked = mine && l.vm.State == grace.VMIPresent && !f.Marked
	if l.inherited && l.pod.Deleting {
		f.ListedBy = f.SignalledAt.Add(reasonTimeout) // the VMI may be shown after the pod
		f.SignalledAt = min(f.SignalledAt, now.Add(-max(0, l.k.cfg.Clock.Wall().Sub(l.pod.DeletedAt))))
		f.KillAt = min(f.KillAt, f.SignalledAt.Add(l.pod.DeletionGrace))
	}
	return f
}

// askPod asks the API server for the pod: its watch may be later than kubelet's. The answer is
// due at a moment: the hook does not wait for a later one.
func (l *launcher) askPod(ctx context.Context, by grace.Mono) {
	l.podAsked = l.k.cfg.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, min(askTimeout, by.Sub(l.podAsked)))
	defer cancel()
	if l.pod.Name == "" {
		return
	}
	p, err := l.k.cfg.Cluster.Launcher(ctx, l.pod.Namespace, l.pod.Name)
	switch {
	case err != nil:
		l.failed("the API server does not show whether the launcher is deleted", err)
	case p.UID == l.rec.Pod && p.Deleting:
		l.pod = p
	}
}

// moveContext is for a question about the VM: none delays the end of the hold.
func (l *launcher) moveContext(ctx context.Context) (context.Context, context.CancelFunc) {
	within := moveTimeout
	if h := &l.rec.Hold; h.UnderWay() {
		within = min(within, h.Until.Sub(l.k.cfg.Clock.Now()))
	}
	return context.WithTimeout(ctx, within)
}

// askMove asks the API server for a migration that the VMI does not show yet. Without an answer
// there is none.
func (l *launcher) askMove(ctx context.Context) {
	ctx, cancel := l.moveContext(ctx)
	defer cancel()
	l.moveAsked = l.k.cfg.Clock.Now()
	migrates, err := l.k.cfg.Cluster.Moves(ctx, l.rec.Namespace, l.rec.Name)
	if err != nil {
		l.failed("the API server does not say whether the VM is to be moved", err)
		return
	}
	l.migrates = migrates
}

// askFate asks what became of a VMI that is not shown any more, and again for the migration
// that only the API server knows of.
func (l *launcher) askFate(ctx context.Context) {
	now := l.k.cfg.Clock.Now()
	if !l.rec.Hold.UnderWay() {
		return
	}
	if l.migrates && now >= l.moveAsked.Add(moveInterval) {
		l.askMove(ctx)
	}
	early := l.fateAsked != 0 && now < l.fateAsked.Add(moveInterval)
	if early || l.vm.State != grace.VMIAbsent || l.rec.VMICreated.IsZero() {
		return
	}
	l.fateAsked = now
	ctx, cancel := l.moveContext(ctx)
	defer cancel()
	fate, err := l.k.cfg.Cluster.Confirm(ctx, l.rec.Namespace, l.rec.Name, l.rec.UID, l.rec.VMICreated)
	switch {
	case err != nil:
		l.failed("the API server does not say what became of the VMI", err)
	case fate == grace.FateMoved || fate == grace.FateFenced:
		l.left = true
	case fate == grace.FateDeleted || fate == grace.FateReplaced || fate == grace.FateLost:
		l.gone = true
	}
}

// save writes or removes the record, in the order of its changes. A disk that fails or hangs
// costs nothing but the survival of a restart.
func (l *launcher) save(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	before, done, rec := l.saved, make(chan struct{}), l.rec
	l.saved = done
	l.unsaved.Store(false)
	err := durable.Within(ctx, "the disk", func() error {
		defer close(done)
		if before != nil {
			<-before
		}
		if !rec.Hold.UnderWay() {
			return l.k.cfg.Records.Delete(rec.Domain())
		}
		return l.k.cfg.Records.Put(rec)
	})
	if err != nil {
		l.unsaved.Store(true)
		l.failed("the hold is not on the disk: an agent that starts in the middle takes its latest moment from the pod", err)
	}
}

func (l *launcher) reportHeld() {
	h := &l.rec.Hold
	l.report("ShutdownHeld", h, fmt.Sprintf("%s: the guest is not asked to shut down yet: the VM may be moved until %s", h.Reason, h.UntilAt.Format(time.RFC3339)))
}

// reportOver tells of a hold after which the guest is asked.
func (l *launcher) reportOver(h *grace.Hold, how Outcome) {
	if how == Moved || how == VMIDeleted || how == LauncherGone {
		return
	}
	l.report("ShutdownStarted", h, fmt.Sprintf("%s: the VM was not moved (%s): its launcher goes on and has the guest shut down", h.Reason, how))
}

// report sends an Event once per hold.
func (l *launcher) report(reason string, h *grace.Hold, message string) {
	if l.rec.UID == "" {
		return
	}
	l.k.cfg.Cluster.Report(agent.Event{
		Namespace: l.rec.Namespace, Name: l.rec.Name, UID: l.rec.UID, Reason: reason, Message: message,
		Key: strconv.FormatInt(h.StartedAt.UnixMilli(), 10), At: l.k.cfg.Clock.Wall().UTC(),
	})
}
