package nodemigration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/migration"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// sourceFacts looks.
func (s *side) sourceFacts(ctx context.Context) (migration.SourceFacts, grace.Instance) {
	s.askGone(ctx)
	x := s.sending
	calling := x.calling()
	here, instance := s.lookWhileThere(ctx)
	if x.process == nil && !x.gone {
		s.identify(ctx, here, instance)
	}
	m, target := s.snapshot()
	return s.factsOf(ctx, m, target, here, calling), instance
}

// lookWhileThere asks the hypervisor what is here until QEMU has ended: libvirt answers
// nothing about a domain while it lets go of it, for a second or more, and meanwhile the
// guest would stand still.
func (s *side) lookWhileThere(ctx context.Context) (hypervisor.Stay, grace.Instance) {
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

// factsOf puts together what was seen.
func (s *side) factsOf(ctx context.Context, m *Migration, target string, here hypervisor.Stay, calling bool) migration.SourceFacts {
	x := s.sending
	f := migration.SourceFacts{
		Migration: m, Gone: s.gone, Target: target, Memory: int64(x.total),
		Ending: s.ending(),
	}
	// Another job than this migration's is waited for, or left alone: once the guest
	// was seen to run on, this one's is over.
	ours := x.called() || m.Status.Phase == kubevirt.MigrationRunning
	f.JobRuns = calling || here == hypervisor.StayBusy && ours && !x.ranOn
	x.hadAnswer = x.called() && !calling
	if x.hadAnswer && x.err != nil {
		f.Failed = fmt.Sprintf("%.500s", cmp.Or(x.abortedBy, x.err.Error())) // of an abort libvirt says that it was one
	}
	if f.JobRuns && x.called() {
		f.Since, f.NoProgress = time.Since(x.started), time.Since(x.leastAt)
	}
	if here == hypervisor.StayBusy { // before that libvirt has not begun to send it
		f.HeldFor = s.node.cfg.VMs.HeldFor(s.domain)
	}
	f.Native, f.Refused = s.node.cfg.URI.Native(), s.unreachable(m)
	f.Paused = x.paused.Mode != "" || migration.StateOf(m).Mode == kubevirt.MigrationPaused
	f.Stopped = here == hypervisor.StayPaused
	f.Guest = s.guest(ctx, here)
	f.RanOn = x.ranOn && (!f.JobRuns || f.Guest == migration.GuestGone)
	return f
}

// unreachable says why libvirt cannot send to the target by itself, empty where it
// can, or need not.
func (s *side) unreachable(m *Migration) string {
	state := migration.StateOf(m)
	if !s.node.cfg.URI.Native() || state.TargetNodeAddress == "" {
		return ""
	}
	if _, err := s.node.cfg.URI.at(state.TargetNodeAddress); err != nil {
		return fmt.Sprintf("node %s cannot be reached by --migration-uri: %v", state.TargetNode, err)
	}
	return ""
}

// guest is what is here.
func (s *side) guest(ctx context.Context, here hypervisor.Stay) migration.Guest {
	x, last := s.sending, s.sending.last
	x.last = here
	if here == hypervisor.StayBusy && x.calling() && !x.ended() {
		x.busy, x.ranOn = true, false // what was over before was another job
	}
	switch {
	case x.ended() && s.explain(ctx, last):
		return migration.GuestGone
	case x.ended():
		return migration.GuestUnknown // until libvirt answers
	case here == hypervisor.StayRunning || here == hypervisor.StayPaused:
		// Its job was seen, and is over: libvirt's answer may come late.
		x.ranOn = x.ranOn || x.hadAnswer || x.busy || !x.called() && s.received
		return migration.GuestRuns
	case here == hypervisor.StayLeft:
		return migration.GuestPaused
	default:
		return migration.GuestUnknown // absent is no proof while its process is there
	}
}

// sourceTurn looks, decides and acts once. It returns true when nothing is left to
// do.
func (s *side) sourceTurn(ctx context.Context, wg *sync.WaitGroup) (over bool) {
	if s.sending == nil {
		s.sending = &sending{}
	}
	f, instance := s.sourceFacts(ctx)
	step, m := migration.NextOfSource(f), f.Migration
	s.log.Debug("source decided", "do", step.Action, "why", step.Reason, "guest", f.Guest, "job", f.JobRuns, "target", f.Target, "phase", m.Status.Phase)
	if migration.StateOf(m).TargetNodeAddress != "" && !s.talking {
		s.talking = true
		wg.Go(func() { s.callTarget(ctx) })
	}
	switch step.Action {
	case migration.SourceBegin:
		s.start(ctx, wg, m)
	case migration.SourceFollow:
		s.follow(ctx, m)
	case migration.SourcePause:
		s.pause(ctx, m, step.Message)
	case migration.SourceAbort:
		s.abort(ctx, step.Message)
	case migration.SourceEnd:
		s.log.Info("ending what is left of the guest", "why", step.Message)
		s.remember(ctx)
		s.do(ctx, "end what is left of the guest", instance, s.node.cfg.Hypervisor.Remove)
	case migration.SourceAsk:
		s.ask()
		s.undecided(m, step.Message)
	case migration.SourceResume:
		s.log.Info("resuming the guest", "why", step.Message)
		s.do(ctx, "resume the guest", instance, s.node.cfg.Hypervisor.Resume)
	default:
		return s.sourceSays(ctx, m, f, step)
	}
	return false
}

// sourceSays says what has become of the guest here. It returns true when nothing is
// left to do.
func (s *side) sourceSays(ctx context.Context, m *Migration, f migration.SourceFacts, step migration.SourceStep) (over bool) {
	switch step.Action {
	case migration.SourceSayGone:
		s.remember(ctx)
		s.node.cfg.VMs.Moved(s.domain, s.sending.instance.UUID)
		s.say(kubevirt.SourceGone)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{SourceState: kubevirt.SourceGone})
		return s.gone && f.Target != "" && f.Target != kubevirt.TargetArrived // nobody else has to hear it
	case migration.SourceSayRunning:
		s.settle()
		s.say(kubevirt.SourceRunning)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{SourceState: kubevirt.SourceRunning, FailureReason: step.Message})
		return s.gone && f.Target == kubevirt.TargetAbsent
	case migration.SourceNothing:
		s.settle() // what was said is known: the record is not needed for it any more
		s.mu.Lock()
		downtime := s.downtime
		s.mu.Unlock()
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{DowntimeMilliseconds: downtime}) // once it is known
		return m.Final() || s.gone
	default:
	}
	return false
}

// ending tells why the guest has to be shut down where it is, or is empty: a
// shutdown beats a migration, unless it is held for one.
func (s *side) ending() string {
	if p := s.node.cfg.VMs.Phase(s.domain); p != "" && p != grace.Running && p != grace.Held {
		return "the guest is being shut down"
	}
	return ""
}

// identify takes hold of the QEMU that is here while libvirt says so, or of the one
// that was here when this agent was started.
func (s *side) identify(ctx context.Context, here hypervisor.Stay, i grace.Instance) {
	x := s.sending
	if here == hypervisor.StayAbsent {
		i = s.node.cfg.VMs.Former(s.domain)
		x.gone = i.PID == 0 // it was of another boot, or nobody knows it
	}
	if x.instance = i; i.PID == 0 {
		return
	}
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
				s.poke()
			case <-ctx.Done():
			}
		}()
	}
}

func (x *sending) ended() bool { return x.gone || x.process != nil && closed(x.process.Done()) }

// called: libvirt was asked to migrate. calling: it has not answered.
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
