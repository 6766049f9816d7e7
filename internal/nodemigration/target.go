package nodemigration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/tunnel"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// targetFacts looks. What the connections say comes first: what is seen after a
// connection has ended is what came of it.
func (s *side) targetFacts(ctx context.Context) (migration.TargetFacts, grace.Instance) {
	s.askGone(ctx)
	s.mu.Lock()
	receiving, received, asks, uuid := s.receiving, s.received, s.asks, s.uuid
	s.mu.Unlock()
	here, instance := s.look(ctx)
	m, source := s.snapshot()
	state := migration.StateOf(m)
	f := migration.TargetFacts{
		Migration: m, Gone: s.gone, JobRuns: receiving || here == hypervisor.StayBusy, Closed: received, Asked: asks, Source: source,
		Ready: s.certified() && here == hypervisor.StayAbsent && s.node.cfg.VMs.LauncherReady(m.Namespace, m.Spec.VMIName, state.TargetPodUID),
	}
	f.Copy = copyOf(here)
	// What is here before the source was asked to begin, or is another domain than it
	// sends, is not this migration's.
	early := m.Status.Phase == kubevirt.MigrationScheduled || m.Status.Phase == kubevirt.MigrationPreparingTarget
	other := uuid != "" && instance.UUID != "" && instance.UUID != uuid
	if (early || other) && f.Copy != migration.CopyNone && f.Copy != migration.CopyUnknown {
		f.Refused, f.Copy, f.JobRuns = "node "+s.node.cfg.Node+" has a domain "+s.domain+" already", migration.CopyNone, receiving
	}
	return f, instance
}

func copyOf(here hypervisor.Stay) migration.Copy {
	switch here {
	case hypervisor.StayAbsent:
		return migration.CopyNone
	case hypervisor.StayBusy, hypervisor.StayLeft:
		return migration.CopyIncoming
	case hypervisor.StayPaused:
		return migration.CopyComplete
	case hypervisor.StayRunning:
		return migration.CopyRunning
	default:
		return migration.CopyUnknown
	}
}

// targetTurn looks, decides and acts once. It returns true when nothing is left to
// do.
func (s *side) targetTurn(ctx context.Context) (over bool) {
	f, instance := s.targetFacts(ctx)
	step, m := migration.NextOfTarget(f), f.Migration
	s.log.Debug("target decided", "do", step.Action, "why", step.Reason, "here", f.Copy, "source", f.Source, "phase", m.Status.Phase)
	switch step.Action {
	case migration.TargetPrepare:
		s.updateStatus(ctx, m, kubevirt.MigrationPreparingTarget, kubevirt.MigrationState{})
	case migration.TargetOffer:
		state := kubevirt.MigrationState{TargetNodeAddress: s.node.address}
		if s.node.cfg.URI.Native() {
			state.Transport = kubevirt.TransportNative
		}
		s.updateStatus(ctx, m, kubevirt.MigrationTargetReady, state)
	case migration.TargetRefuse:
		s.close()
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetAbsent, FailureReason: step.Message})
	case migration.TargetHold:
		s.undecided(m, step.Message)
		s.say(kubevirt.TargetArrived)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetArrived})
	case migration.TargetResume:
		s.log.Info("resuming the guest that arrived", "why", step.Message)
		if s.do(ctx, "resume the guest that arrived", instance, s.node.cfg.Hypervisor.Resume) {
			s.mu.Lock()
			s.resumedAt = time.Now()
			s.mu.Unlock()
		}
	case migration.TargetRemove:
		s.log.Info("removing what arrived", "why", step.Message)
		s.close()
		s.do(ctx, "remove the guest that arrived", instance, s.node.cfg.Hypervisor.Remove)
	case migration.TargetTell:
		s.settle()
		s.say(kubevirt.TargetRunning)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetRunning})
		return s.gone
	case migration.TargetSayGone:
		s.close()
		s.say(kubevirt.TargetAbsent)
		s.updateStatus(ctx, m, "", kubevirt.MigrationState{TargetState: kubevirt.TargetAbsent})
		return s.gone
	case migration.TargetNothing:
		s.settle()
		return m.Final() || s.gone
	default:
	}
	return false
}

// undecided tells people once of a guest that stays paused.
func (s *side) undecided(m *Migration, why string) {
	if s.paused.IsZero() {
		s.paused = time.Now()
	}
	if s.reported || time.Since(s.paused) < undecidedFor {
		return
	}
	s.reported = true
	s.log.Warn("a guest is paused between two nodes", "why", why)
	s.node.cfg.Cluster.Event(m, reasonUndecided, why)
}

// close lets no connection in any more.
func (s *side) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = true
}

// admit tells whether a connection is that of this migration's source.
func (s *side) admit(from string, h hello) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.known()
	phase := m.Status.Phase
	switch {
	case from != migration.StateOf(m).SourceNode:
		return fmt.Errorf("migration %s comes from another node than %s", m.Name, from)
	case phase != kubevirt.MigrationTargetReady && phase != kubevirt.MigrationRunning && h.Role == roleRelay:
		return fmt.Errorf("migration %s is in phase %s", m.Name, phase)
	case h.Role == roleControl:
		return nil
	case h.Role != roleRelay:
		return errors.New("a connection of no known kind")
	case migration.StateOf(m).Transport == kubevirt.TransportNative:
		return fmt.Errorf("migration %s comes by --migration-uri here, and not through the agents", m.Name)
	case s.receiving || s.received || s.vanished || s.state != "" || m.DeletionTimestamp != nil:
		return fmt.Errorf("migration %s had its connection, or is over", m.Name)
	}
	s.receiving, s.phase = true, kubevirt.MigrationRunning
	return nil
}

// over: a connection with the guest has ended.
func (s *side) over(h hello) {
	if h.Role == roleRelay {
		s.mu.Lock()
		s.receiving, s.received = false, true
		s.mu.Unlock()
		s.poke()
	}
}

// receive lets the guest in.
func (s *side) receive(ctx context.Context, l *link, h hello) (err error) {
	defer s.over(h)
	defer func() {
		refusal := ""
		if err != nil {
			refusal = err.Error()
		}
		s.end(refusal)
	}()
	dialer := net.Dialer{Timeout: dialTimeout}
	libvirt, err := dialer.DialContext(ctx, "unix", s.node.cfg.LibvirtSocket)
	if err != nil {
		return fmt.Errorf("libvirt of this node: %w", err)
	}
	err = tunnel.Guard(ctx, l, libvirt, tunnel.Agreement{
		Domain: s.domain, UUID: h.UUID, Paths: s.node.cfg.Paths, Networks: s.node.cfg.Networks,
	})
	s.log.Info("the guest's connection has ended")
	if r, refused := errors.AsType[*tunnel.Refusal](err); refused {
		s.node.cfg.Meter.TunnelRefused(r.Reason)
		return err
	}
	return nil
}
