package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// sourceFacts observes the source's facts.
func (s *side) sourceFacts(ctx context.Context) (migration.SourceFacts, grace.Instance) {
	s.checkGone(ctx)
	x := s.sending
	calling := x.calling()
	here, instance := s.lookUntilExit(ctx)
	if x.process == nil && !x.gone {
		s.identify(ctx, here, instance)
	}
	m, target := s.snapshot()
	return s.factsOf(ctx, m, target, s.presumed(m, here, calling), calling), instance
}

// lookUntilExit asks the hypervisor for the domain's state, and stops when QEMU ends. libvirt
// answers nothing about a domain while it cleans up: waiting for it would add a second or
// more to the downtime.
func (s *side) lookUntilExit(ctx context.Context) (hypervisor.Stay, grace.Instance) {
	p := s.sending.process
	if p == nil {
		return s.look(ctx)
	}
	if closed(p.Done()) {
		return hypervisor.StayUnknown, s.sending.instance
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return s.look(ctx)
}

// factsOf builds the facts from the observation.
func (s *side) factsOf(ctx context.Context, m *Migration, target string, here hypervisor.Stay, calling bool) migration.SourceFacts {
	x := s.sending
	f := migration.SourceFacts{
		Migration: m, Gone: s.gone, Target: target, Memory: int64(x.total),
		Ending: s.ending(), Native: s.native(),
	}
	ours := s.jobIsOurs(m)
	// The job is over once the guest was seen to run on.
	f.JobRuns = calling || here == hypervisor.StayBusy && ours && !x.ranOn
	x.hadReturned = x.called() && !calling
	if x.hadReturned && x.err != nil {
		f.Failed = fmt.Sprintf("%.500s", cmp.Or(x.abortedBy, x.err.Error())) // libvirt's error gives no reason for an abort
	}
	f.Failed = cmp.Or(f.Failed, s.notGot(target, migration.StateOf(m).TargetNode), s.restarted(&f))
	f.NotResumed = notResumedInTime(x.notResumed)
	if f.JobRuns && x.called() {
		f.Since, f.NoProgress = time.Since(x.started), time.Since(x.minRemainingAt)
	}
	if here == hypervisor.StayBusy { // otherwise libvirt has not begun to send it
		f.HeldFor = s.node.cfg.VMs.HeldFor(s.domain)
	}
	f.Refused = cmp.Or(s.replaced(m), x.noSocket, s.unreachable(m))
	f.Paused = x.paused.Mode != "" || migration.StateOf(m).Mode == kubevirt.MigrationPaused
	sentPaused := s.pausedFacts(ctx, &f, here)
	f.Guest = s.guest(ctx, here, sentPaused || s.couldNotResume(m, here))
	f.RanOn = x.ranOn && (!f.JobRuns || f.Guest == migration.GuestGone)
	return f
}

// jobIsOurs reports whether this migration's job was started. Another job of libvirt's does
// not count.
func (s *side) jobIsOurs(m *Migration) bool {
	return s.sending.called() || m.Status.Phase == kubevirt.MigrationRunning
}

// pausedFacts sets the facts about a guest that its user has paused. It reports whether the
// guest was sent paused.
func (s *side) pausedFacts(ctx context.Context, f *migration.SourceFacts, here hypervisor.Stay) (sentPaused bool) {
	ours := s.jobIsOurs(f.Migration)
	s.mu.Lock()
	sentPaused = s.keptPaused()
	f.KeepsPaused, f.TooOld = s.peerKeepsPaused, s.heard && !s.peerKeepsPaused
	f.Linked, f.FencedByPeer = s.linked, s.fencedByPeer
	s.mu.Unlock()
	f.Stopped, f.ByUser = here == hypervisor.StayStopped || here == hypervisor.StayNotResumed, here == hypervisor.StayPaused
	if ours {
		f.ByUser = sentPaused
	}
	f.ArrivedSo = f.ByUser && !ours && s.arrivedPaused(ctx)
	return sentPaused
}

// unreachable returns why libvirt cannot send directly to the target, empty if it can or
// does not have to.
func (s *side) unreachable(m *Migration) string {
	state := migration.StateOf(m)
	if !s.native() || state.TargetNodeAddress == "" {
		return ""
	}
	if _, err := s.node.cfg.URI.at(state.TargetNodeAddress); err != nil {
		return fmt.Sprintf("node %s cannot be reached by --migration-uri: %v", state.TargetNode, err)
	}
	return ""
}

// guest derives the guest's state from the observation. A guest that was sent paused, or that libvirt
// could not resume, looks the same while it is handed over and after it has stayed: only the target's
// agent knows.
func (s *side) guest(ctx context.Context, here hypervisor.Stay, sentStopped bool) migration.Guest {
	x, last := s.sending, s.sending.lastStay
	x.lastStay = here
	if here == hypervisor.StayBusy && x.calling() && !x.ended() {
		x.jobSeen, x.ranOn = true, false // an earlier end was the end of another job
	}
	stands := slices.Contains([]hypervisor.Stay{hypervisor.StayPaused, hypervisor.StayStopped, hypervisor.StayNotResumed}, here)
	switch {
	case x.ended() && s.explainExit(ctx, last):
		return migration.GuestGone
	case x.ended():
		return migration.GuestUnknown // until libvirt's call returns
	case sentStopped && stands, here == hypervisor.StayLeft:
		return migration.GuestPaused
	case stands, here == hypervisor.StayRunning:
		// The job is over, even if libvirt's call has not returned yet.
		x.ranOn = x.ranOn || x.hadReturned || x.jobSeen || !x.called() && s.received
		return migration.GuestRuns
	default:
		return migration.GuestUnknown // absence of the domain is no proof while the process exists
	}
}

// sourceTurn observes, decides and acts once. It returns true when the side is done.
func (s *side) sourceTurn(ctx context.Context, wg *sync.WaitGroup) (over bool) {
	if s.sending == nil {
		s.sending = &sending{}
	}
	x := s.sending
	f, instance := s.sourceFacts(ctx)
	step, m := migration.NextOfSource(f), f.Migration
	s.log.Debug("source decided", "do", step.Action, "why", step.Reason, "guest", f.Guest, "job", f.JobRuns, "target", f.Target, "phase", m.Status.Phase)
	if migration.StateOf(m).TargetNodeAddress != "" && !s.connecting {
		s.connecting = true
		wg.Go(func() { s.runControl(ctx) })
	}
	s.stateUUID(ctx, m)
	switch step.Action {
	case migration.SourceBegin:
		s.start(ctx, wg, m)
	case migration.SourceWait:
		if f.Guest == migration.GuestUnknown {
			s.reportSilence(m)
		}
	case migration.SourceFollow:
		s.follow(ctx, m)
	case migration.SourcePause:
		s.pause(ctx, m, step.Message)
	case migration.SourceAbort:
		s.abort(ctx, step.Message)
	case migration.SourceEnd:
		s.log.Info("ending what is left of the guest", "why", step.Message)
		s.recordDeparture(ctx)
		if f.Guest == migration.GuestUnknown {
			s.kill(ctx) // libvirt does not answer
		}
		s.do(ctx, "end what is left of the guest", instance, s.kind().Remove)
	case migration.SourceQuery:
		s.queryTarget()
		s.reportUndecided(m, step.Message)
	case migration.SourceResume:
		s.log.Info("resuming the guest", "why", step.Message)
		s.resume(ctx, "resume the guest", instance, &x.notResumed)
	default:
		return s.reportSource(ctx, m, f, step)
	}
	return false
}

// kill ends the guest's QEMU without libvirt: that of the record, if libvirt has not shown one.
func (s *side) kill(ctx context.Context) {
	x := s.sending
	if i := s.node.cfg.VMs.Former(s.domain); x.process == nil && i.PID != 0 {
		s.watch(ctx, i)
	}
	if x.process == nil || x.ended() {
		return
	}
	if err := x.process.Signal(unix.SIGKILL); err != nil {
		s.log.Error("cannot end what is left of the guest; trying again", "err", err)
	}
}

// reportSource does the steps that report the guest's state on this node. It returns true
// when the side is done.
func (s *side) reportSource(ctx context.Context, m *Migration, f migration.SourceFacts, step migration.SourceStep) (over bool) {
	switch step.Action {
	case migration.SourceReportGone:
		s.recordDeparture(ctx)
		s.node.cfg.VMs.Moved(s.domain, s.sending.instance.UUID)
		s.report(kubevirt.SourceGone)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{SourceState: kubevirt.SourceGone})
		return s.gone && f.Target != "" && f.Target != kubevirt.TargetArrived // the target has received it
	case migration.SourceReportRunning:
		s.release()
		s.report(kubevirt.SourceRunning)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{SourceState: kubevirt.SourceRunning, FailureReason: step.Message})
		return s.gone && f.Target == kubevirt.TargetAbsent
	case migration.SourceNothing:
		if !s.recordOpen(m, f) {
			s.release() // the final state is in the status: the grace record may go
		}
		s.mu.Lock()
		downtime := s.downtime
		s.mu.Unlock()
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{DowntimeMilliseconds: downtime}) // skipped while unknown
		return m.Final() || s.gone
	default:
	}
	return false
}

// ending returns why the guest has to be shut down on this node, or "". A shutdown takes
// precedence over a migration, unless it is held for the migration.
func (s *side) ending() string {
	if p := s.node.cfg.VMs.Phase(s.domain); p != "" && p != grace.Running && p != grace.Held {
		return "the guest is being shut down"
	}
	return ""
}

// identify opens the process of the domain's QEMU or, if there is no domain, of the QEMU in
// the record that this agent found when it started.
func (s *side) identify(ctx context.Context, here hypervisor.Stay, i grace.Instance) {
	x := s.sending
	if here == hypervisor.StayAbsent {
		i = s.node.cfg.VMs.Former(s.domain)
		x.gone = i.PID == 0 // of another boot, or without a record
	}
	// A launcher that outlives its QEMU does not show that this has ended. The record does.
	m, _ := s.snapshot()
	if f := s.node.cfg.VMs.Former(s.domain); here == hypervisor.StayUnknown && i.PID == 0 && hypervisor.InLauncher(f) && uuidOf(f) == migration.StateOf(m).DomainUUID {
		i = f
	}
	if x.instance = i; i.PID != 0 {
		s.watch(ctx, i)
	}
}

// watch opens the process of an instance.
func (s *side) watch(ctx context.Context, i grace.Instance) {
	x := s.sending
	x.instance = i
	p, err := s.node.cfg.Open(i.PID, i.Start)
	switch {
	case errors.Is(err, process.ErrGone):
		x.gone = true
	case err != nil:
		s.log.Warn("cannot watch the QEMU that migrates", "pid", i.PID, "err", err)
	default:
		x.process = p
		go func() {
			select {
			case <-p.Done():
				s.wakeUp()
			case <-ctx.Done():
			}
		}()
	}
}

func (x *sending) ended() bool { return x.gone || x.process != nil && closed(x.process.Done()) }

// called reports whether libvirt's call was made, calling whether it has not returned.
func (x *sending) called() bool  { return x.returned != nil }
func (x *sending) calling() bool { return x.called() && !closed(x.returned) }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
