package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/agent"
	"github.com/vmgrace/vmgrace/internal/nodemigration"
	"github.com/vmgrace/vmgrace/pkg/migration"
)

// Migrations watches the live migrations that this node has a side in, and no other:
// two watches, each with a selector of this node's name.
type Migrations struct {
	source  *Source
	from    *store[*kubevirt.VirtualMachineInstanceMigration] // this node
	to      *store[*kubevirt.VirtualMachineInstanceMigration]
	health  *health
	changed func()
	refused atomic.Bool // the API server knows no migrations, or does not show them
}

// NewMigrations shares the connection of a Source. changed is called whenever All
// may say something else; it must not block.
func NewMigrations(s *Source, changed func()) *Migrations {
	m := &Migrations{source: s, changed: changed, health: newHealth(s.log, s.now, migrations())}
	m.health.what, m.health.without = "live migrations are", "no VM is moved from or to this node"
	for _, side := range []struct {
		store **store[*kubevirt.VirtualMachineInstanceMigration]
		label string
	}{{&m.from, migration.SourceNodeLabel}, {&m.to, migration.TargetNodeLabel}} {
		*side.store = &store[*kubevirt.VirtualMachineInstanceMigration]{
			strip: func(o *object, _ *kubevirt.VirtualMachineInstanceMigration) *kubevirt.VirtualMachineInstanceMigration {
				return m.strip(o, side.label)
			},
			notify: func(_, _ *kubevirt.VirtualMachineInstanceMigration) { changed() },
		}
	}
	return m
}

// Run watches until ctx ends.
func (m *Migrations) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, w := range []struct {
		label string
		to    *store[*kubevirt.VirtualMachineInstanceMigration]
	}{{migration.SourceNodeLabel, m.from}, {migration.TargetNodeLabel, m.to}} {
		from := &source{
			client: m.source.client.Load(), resource: migrations(),
			labels: labels.Set{w.label: m.source.node}.String(), health: m.health, failing: m.failing,
		}
		running.Go(func() { reflect(ctx, from, w.to) })
	}
	running.Wait()
}

// failing: where there are no migrations, or none may be seen, this node has a side
// in none.
func (m *Migrations) failing(err error) {
	if t := classify(err); t == notServed || t == forbidden {
		m.refused.Store(true)
		m.changed()
	}
}

// Known reports whether All is complete: everything was listed, or cannot be.
func (m *Migrations) Known() bool { return m.from.synced() && m.to.synced() || m.refused.Load() }

// strip takes over what has the shape of a migration. A status of another kind is
// as if it were empty.
func (m *Migrations) strip(o *object, label string) *kubevirt.VirtualMachineInstanceMigration {
	is := &kubevirt.VirtualMachineInstanceMigration{ObjectMeta: o.ObjectMeta}
	is.ManagedFields = nil
	if o.Labels[label] != m.source.node || json.Unmarshal(o.Spec, &is.Spec) != nil || !(key{o.Namespace, is.Spec.VMIName}).valid() {
		return nil
	}
	_ = json.Unmarshal(o.Status, &is.Status)
	return is
}

// All returns the migrations, which must not be written to.
func (m *Migrations) All() []*kubevirt.VirtualMachineInstanceMigration {
	var all []*kubevirt.VirtualMachineInstanceMigration
	seen := map[types.UID]bool{}
	for _, s := range []*store[*kubevirt.VirtualMachineInstanceMigration]{m.from, m.to} {
		s.all(func(is *kubevirt.VirtualMachineInstanceMigration) {
			if !seen[is.UID] {
				seen[is.UID] = true
				all = append(all, is)
			}
		})
	}
	return all
}

// Tell changes the status of a migration: only what is said, and a phase only over
// the object that was read.
func (m *Migrations) Tell(ctx context.Context, of *kubevirt.VirtualMachineInstanceMigration, t nodemigration.Told) error {
	now := time.Now()
	state := kubevirt.MigrationState{
		TargetNodeAddress: t.TargetAddress, Transport: t.Transport, SourceState: t.SourceState, TargetState: t.TargetState,
		FailureReason: t.FailureReason, Progress: t.Progress,
	}
	if !t.Paused.IsZero() {
		state.Mode, state.PauseTimestamp = kubevirt.MigrationPaused, &metav1.MicroTime{Time: t.Paused}
	}
	if t.Downtime > 0 {
		state.DowntimeMilliseconds = max(1, t.Downtime.Milliseconds())
	}
	if t.TargetState == kubevirt.TargetRunning {
		state.ResumeTimestamp = &metav1.MicroTime{Time: now}
	}
	if t.Phase == kubevirt.MigrationRunning {
		state.StartTimestamp = &metav1.Time{Time: now}
	}
	meta := map[string]any{"uid": of.UID}
	status := kubevirt.VirtualMachineInstanceMigrationStatus{Phase: t.Phase}
	if t.Phase != "" {
		meta["resourceVersion"] = of.ResourceVersion
		status.PhaseTransitionTimestamps = of.Transitions(t.Phase, now)
	}
	if state != (kubevirt.MigrationState{}) {
		status.MigrationState = &state
	}
	body, err := json.Marshal(map[string]any{"metadata": meta, "status": status}) // without what is empty
	if err != nil {
		return fmt.Errorf("encode it: %w", err)
	}
	a, err := ask(ctx, migrations().of(m.source.client.Load().Patch(types.MergePatchType)).
		Namespace(of.Namespace).Name(of.Name).SubResource("status").Body(body))
	if err != nil {
		return err
	}
	return a.expect(http.StatusOK)
}

// Event reports an Event of the VM that moves.
func (m *Migrations) Event(of *kubevirt.VirtualMachineInstanceMigration, reason, message string) {
	m.source.Report(agent.Event{
		Namespace: of.Namespace, Name: of.Spec.VMIName, UID: migration.StateOf(of).VMIUID,
		Reason: reason, Message: message, Warning: true, Key: string(of.UID), At: time.Now().UTC(),
	})
}

// Gone reports whether the API server says by its name that there is no such
// migration.
func (m *Migrations) Gone(ctx context.Context, of *kubevirt.VirtualMachineInstanceMigration) (bool, error) {
	o, err := m.source.get(ctx, migrations(), key{of.Namespace, of.Name})
	if errors.Is(err, errGone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return o.UID != of.UID, nil
}
