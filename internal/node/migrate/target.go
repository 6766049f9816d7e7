package migrate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/migrate/tunnel"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// targetFacts observes the target's facts. It reads the connections' state before the
// domain's: a domain that is seen after its connection has ended is the final result.
func (s *side) targetFacts(ctx context.Context) (migration.TargetFacts, grace.Instance) {
	s.checkGone(ctx)
	s.mu.Lock()
	receiving, received, query, paused := s.receiving, s.received, s.query, s.keptPaused()
	s.mu.Unlock()
	here, instance := s.look(ctx)
	m, source := s.snapshot()
	state := migration.StateOf(m)
	here, receives := s.doubted(here, instance, source, state)
	f := migration.TargetFacts{
		Migration: m, Gone: s.gone, JobRuns: receiving || here == hypervisor.StayBusy && receives, Closed: received, Queried: query, Source: source, Paused: paused,
		Ready: canonicalUUID(state.DomainUUID) && s.certified() && s.waits(here) && s.node.cfg.VMs.LauncherReady(m.Namespace, m.Spec.VMIName, state.TargetPodUID),
	}
	f.Copy, f.FencedFor, f.NotResumed = copyOf(here), s.fencedFor(state), notResumedInTime(s.notResumed)
	// A domain that exists before the source may begin, or has another UUID than the one
	// that is sent, is not the guest. removeStranger ends it if it came through the relay.
	early := notOffered(m)
	other := isOther(state, instance)
	if other && f.Copy != migration.CopyRunning {
		s.removeStranger(instance)
	}
	if (early || other) && f.Copy != migration.CopyNone && f.Copy != migration.CopyUnknown {
		f.Refused, f.Copy, f.JobRuns = "node "+s.node.cfg.Node+" has a domain "+s.domain+" already", migration.CopyNone, receiving
	}
	if early && s.goesDown(f.Copy) {
		f.Refused = "node " + s.node.cfg.Node + " shuts down"
	}
	if s.unsent(f.Copy, instance, state) {
		f.Refused, f.Copy, f.JobRuns = "the launcher on node "+s.node.cfg.Node+" says that a guest is there, and none was sent", migration.CopyNone, receiving
	}
	return f, instance
}

// notOffered reports whether the source may not begin yet.
func notOffered(m *Migration) bool {
	return m.Status.Phase == kubevirt.MigrationScheduled || m.Status.Phase == kubevirt.MigrationPreparingTarget
}

// goesDown reports whether the guest would come to a node that shuts down.
func (s *side) goesDown(here migration.Copy) bool {
	return here == migration.CopyNone && s.node.cfg.GoesDown()
}

// waits reports whether this node has the place for the guest: no domain of libvirt's, or in a
// launcher pod an empty QEMU whose machine is known.
func (s *side) waits(here hypervisor.Stay) bool {
	if s.inLauncher() {
		return here == hypervisor.StayWaiting && s.node.cfg.Launchers.Machine(s.domain) != ""
	}
	return here == hypervisor.StayAbsent
}

// fencedFor returns how long this side has known that the source's node is fenced, without a
// connection to its agent; 0 if it is not fenced, or its agent has reported SourceGone itself.
func (s *side) fencedFor(state *kubevirt.MigrationState) time.Duration {
	s.mu.Lock()
	linked, told := len(s.controls) > 0, s.peerState
	s.mu.Unlock()
	if state.SourceFenced == "" || told == kubevirt.SourceGone {
		return 0
	}
	if s.fencedSince.IsZero() || linked {
		s.fencedSince = time.Now()
	}
	return max(1, time.Since(s.fencedSince))
}

func copyOf(here hypervisor.Stay) migration.Copy {
	switch here {
	case hypervisor.StayAbsent, hypervisor.StayWaiting:
		return migration.CopyNone
	case hypervisor.StayBusy, hypervisor.StayLeft:
		return migration.CopyIncoming
	case hypervisor.StayPaused, hypervisor.StayStopped, hypervisor.StayNotResumed:
		return migration.CopyComplete
	case hypervisor.StayRunning:
		return migration.CopyRunning
	default:
		return migration.CopyUnknown
	}
}

// targetTurn observes, decides and acts once. It returns true when the side is done.
func (s *side) targetTurn(ctx context.Context) (over bool) {
	f, instance := s.targetFacts(ctx)
	step, m := migration.NextOfTarget(f), f.Migration
	s.log.Debug("target decided", "do", step.Action, "why", step.Reason, "here", f.Copy, "source", f.Source, "phase", m.Status.Phase)
	switch step.Action {
	case migration.TargetPrepare:
		s.updateStatus(ctx, m, kubevirt.MigrationPreparingTarget, kubevirt.MigrationState{})
	case migration.TargetOffer:
		state := kubevirt.MigrationState{TargetNodeAddress: s.node.address}
		if s.native() {
			state.Transport = kubevirt.TransportNative
		}
		s.offer()
		s.updateStatus(ctx, m, kubevirt.MigrationTargetReady, state)
	case migration.TargetWait:
		if f.Copy == migration.CopyUnknown {
			s.reportSilence(m)
		}
	case migration.TargetRefuse:
		s.stopReceiving()
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetAbsent, FailureReason: step.Message})
	case migration.TargetHold:
		s.hold(ctx, m, step.Message)
	case migration.TargetResume:
		s.log.Info("resuming the guest that arrived", "why", step.Message)
		if s.resume(ctx, "resume the guest that arrived", instance, &s.notResumed) {
			s.mu.Lock()
			s.resumedAt = time.Now()
			s.mu.Unlock()
		}
	case migration.TargetRemove:
		s.log.Info("removing what arrived", "why", step.Message)
		s.stopReceiving()
		s.do(ctx, "remove the guest that arrived", instance, s.kind().Remove)
	case migration.TargetReportRunning:
		s.reportHere(ctx, f, instance)
		return s.gone
	case migration.TargetReportAbsent:
		s.stopReceiving()
		s.report(kubevirt.TargetAbsent)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetAbsent})
		return s.gone
	case migration.TargetNothing:
		s.release()
		return m.Final() || s.gone
	default:
	}
	return false
}

// hold reports that the guest has arrived and stays paused. The source's agent answers at once; the
// API server's answer would delay the guest.
func (s *side) hold(ctx context.Context, m *Migration, why string) {
	s.reportUndecided(m, why)
	s.report(kubevirt.TargetArrived)
	if time.Since(s.undecidedSince) >= tick/2 {
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetArrived})
	}
}

// reportHere reports that the guest is here alone.
func (s *side) reportHere(ctx context.Context, f migration.TargetFacts, i grace.Instance) {
	if f.Paused && f.Copy == migration.CopyComplete {
		s.recordPaused(ctx, i)
	}
	s.release()
	s.report(kubevirt.TargetRunning)
	s.updateStatus(ctx, f.Migration, "", kubevirt.MigrationState{TargetState: kubevirt.TargetRunning})
}

// offer records that this side writes that it is ready.
func (s *side) offer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offered = true
}

// reportUndecided sends one Event about a guest that stays paused.
func (s *side) reportUndecided(m *Migration, why string) {
	if s.undecidedSince.IsZero() {
		s.undecidedSince = time.Now()
	}
	if s.undecidedReported || time.Since(s.undecidedSince) < undecidedTimeout {
		return
	}
	s.undecidedReported = true
	s.log.Warn("what becomes of a guest is not decided", "why", why)
	s.node.cfg.Cluster.Event(m, reasonUndecided, why)
}

// stopReceiving rejects further relay connections.
func (s *side) stopReceiving() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = true
}

// admit checks that a connection is of this migration's source and allowed in its phase.
func (s *side) admit(from string, h hello) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.current()
	switch {
	case from != migration.StateOf(m).SourceNode:
		return fmt.Errorf("migration %s comes from another node than %s", m.Name, from)
	case h.UUID != migration.StateOf(m).DomainUUID:
		return fmt.Errorf("migration %s is of domain %q, not %.64q", m.Name, migration.StateOf(m).DomainUUID, h.UUID)
	case h.Role == roleControl:
		return nil
	case h.Role != roleRelay && h.Role != roleStream:
		return errors.New("a connection of no known kind")
	}
	if err := s.admitGuest(m, h); err != nil {
		return err
	}
	s.receiving, s.phase, s.relayedAt = true, kubevirt.MigrationRunning, time.Now()
	return nil
}

// admitGuest checks that the guest may come now, and so. The caller holds the lock.
func (s *side) admitGuest(m *Migration, h hello) error {
	phase := m.Status.Phase
	if phase == kubevirt.MigrationPreparingTarget && s.offered {
		phase = kubevirt.MigrationTargetReady // the source has read it before this agent had the API server's answer
	}
	switch {
	case phase != kubevirt.MigrationTargetReady && phase != kubevirt.MigrationRunning:
		return fmt.Errorf("migration %s is in phase %s", m.Name, phase)
	case (h.Role == roleStream) != s.node.inLauncher(s.domain, m):
		return fmt.Errorf("migration %s: the VM is in its launcher pod on one node, and libvirt's on the other", m.Name)
	case !canonicalUUID(h.UUID):
		return fmt.Errorf("the status of migration %s does not say yet which domain is sent", m.Name)
	case migration.StateOf(m).Transport == kubevirt.TransportNative:
		return fmt.Errorf("migration %s comes by --migration-uri here, and not through the agents", m.Name)
	case s.receiving || s.received || s.missing || s.state != "" || m.DeletionTimestamp != nil:
		return fmt.Errorf("migration %s had its connection, or is over", m.Name)
	}
	return nil
}

// connectionClosed records the end of a relay connection.
func (s *side) connectionClosed(h hello) {
	if h.Role != roleControl {
		s.mu.Lock()
		s.receiving, s.received, s.relayEndedAt = false, true, time.Now()
		s.mu.Unlock()
		s.wakeUp()
	}
}

// receive passes the relay connection to the launcher, or through package tunnel to libvirt. The
// error is what the source gets as the refusal.
func (s *side) receive(ctx context.Context, l *link, h hello) (err error) {
	defer s.connectionClosed(h)
	defer func() {
		refusal := ""
		if err != nil {
			refusal = err.Error()
		}
		s.setRelayEnd(refusal)
	}()
	if h.Role == roleStream {
		return s.receiveStream(ctx, l, h)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	libvirt, err := dialer.DialContext(ctx, "unix", s.node.cfg.LibvirtSocket)
	if err != nil {
		return fmt.Errorf("libvirt of this node: %w", err)
	}
	agreed := s.node.cfg.Allowed
	agreed.Domain, agreed.UUID = s.domain, h.UUID
	err = tunnel.Guard(ctx, l, libvirt, agreed)
	s.log.Info("the guest's connection has ended")
	if _, refused := errors.AsType[*tunnel.Refusal](err); refused {
		return err
	}
	return nil
}
