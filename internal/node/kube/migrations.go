package kube

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/internal/node/migrate"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Migrations watches the live migrations of this node. It has one watch per side, each
// with a label selector for this node's name.
type Migrations struct {
	source  *Source
	signers string // namespace of the controller that signs node certificates
	sides   []side
	health  *health
	changed func()
	refused atomic.Bool  // the API server does not serve migrations, or forbids to list them
	since   atomic.Int64 // grace.Mono of the first such response; 0: none
}

// side holds the migrations that name this node in a label.
type side struct {
	label string
	*store[*migrate.Migration]
}

// NewMigrations shares the connection of a Source. signers is the namespace of the
// controller that signs node certificates. changed is called whenever the result of
// Migrations may have changed; it must not block.
func NewMigrations(s *Source, signers string, changed func()) *Migrations {
	m := &Migrations{source: s, signers: signers, changed: changed, health: newHealth(s.log, s.now, migrations())}
	m.health.what, m.health.without = "live migrations are", "no VM is moved from or to this node"
	for _, label := range []string{migration.SourceNodeLabel, migration.TargetNodeLabel} {
		m.sides = append(m.sides, side{label, &store[*migrate.Migration]{
			strip:  func(o *object, _ *migrate.Migration) *migrate.Migration { return m.strip(o, label) },
			notify: func(_, _ *migrate.Migration) { changed() },
		}})
	}
	return m
}

// Run watches until ctx ends.
func (m *Migrations) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, side := range m.sides {
		from := &source{
			client: m.source.client.Load(), resource: migrations(),
			labels: labels.Set{side.label: m.source.node}.String(), health: m.health, failing: m.failing,
		}
		running.Go(func() { reflect(ctx, from, side.store) })
	}
	running.Wait()
}

// failing is called for each failed request. If migrations are not served or forbidden,
// this node takes part in none. Only a persistent error counts: a starting server responds
// so for a moment, too, and an arriving guest would be mistaken for one that runs here.
func (m *Migrations) failing(err error) {
	if t := classify(err); t != notServed && t != forbidden {
		return
	}
	now := m.source.now()
	m.since.CompareAndSwap(0, int64(now))
	if now.Sub(grace.Mono(m.since.Load())) >= persistent {
		m.refused.Store(true)
		m.changed()
	}
}

// strip converts a valid object to a migration, or returns nil. An unreadable object
// counts as absent.
func (m *Migrations) strip(o *object, label string) *migrate.Migration {
	is := &migrate.Migration{ObjectMeta: o.ObjectMeta}
	is.ManagedFields = nil
	_, _ = json.Unmarshal(o.Spec, &is.Spec), json.Unmarshal(o.Status, &is.Status)
	if o.Labels[label] != m.source.node || !(key{o.Namespace, is.Spec.VMIName}).valid() {
		return nil
	}
	return is
}

// Migrations implements transfer.Cluster. The result is complete after the first list of
// both watches, or if the API server persistently refuses to list.
func (m *Migrations) Migrations() (all []*migrate.Migration, complete bool) {
	// Read this first: a list that completes after this line calls changed.
	complete = m.refused.Load() || !slices.ContainsFunc(m.sides, func(s side) bool { return !s.synced() })
	seen := map[types.UID]bool{}
	for _, side := range m.sides {
		side.all(func(is *migrate.Migration) {
			if !seen[is.UID] {
				seen[is.UID] = true
				all = append(all, is)
			}
		})
	}
	return all, complete
}

// UpdateStatus implements transfer.Cluster: a merge patch without the empty fields.
func (m *Migrations) UpdateStatus(ctx context.Context, of *migrate.Migration, phase kubevirt.MigrationPhase, state kubevirt.MigrationState) error {
	now := time.Now()
	if state.TargetState == kubevirt.TargetRunning && migration.StateOf(of).ResumeTimestamp == nil { // written once
		state.ResumeTimestamp = &metav1.MicroTime{Time: now}
	}
	if phase == kubevirt.MigrationRunning {
		state.StartTimestamp = &metav1.Time{Time: now}
	}
	meta := map[string]any{"uid": of.UID}
	status := kubevirt.VirtualMachineInstanceMigrationStatus{Phase: phase}
	if phase != "" {
		meta["resourceVersion"] = of.ResourceVersion
		status.PhaseTransitionTimestamps = of.Transitions(phase, now)
	}
	if state != (kubevirt.MigrationState{}) {
		status.MigrationState = &state
	}
	patch := map[string]any{"metadata": meta, "status": status}
	return m.source.patchStatus(ctx, migrations(), key{of.Namespace, of.Name}, types.MergePatchType, patch)
}

// Event implements transfer.Cluster.
func (m *Migrations) Event(of *migrate.Migration, reason, message string) {
	m.source.Report(agent.Event{
		Namespace: of.Namespace, Name: of.Spec.VMIName, UID: migration.StateOf(of).VMIUID,
		Reason: reason, Message: message, Warning: true, Key: string(of.UID), At: time.Now().UTC(),
	})
}

// Gone implements transfer.Cluster.
func (m *Migrations) Gone(ctx context.Context, of *migrate.Migration) (bool, error) {
	o, err := m.source.get(ctx, migrations(), key{of.Namespace, of.Name})
	if errors.Is(err, errGone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return o.UID != of.UID, nil
}
