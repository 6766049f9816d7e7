package kubevirt

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MigrationPhase is where a migration is.
type MigrationPhase string

// Phases, in this order. An empty one is that of a migration nobody has looked
// at. Succeeded and Failed are final.
const (
	MigrationPending         MigrationPhase = "Pending"
	MigrationScheduling      MigrationPhase = "Scheduling"
	MigrationScheduled       MigrationPhase = "Scheduled"
	MigrationPreparingTarget MigrationPhase = "PreparingTarget"
	MigrationTargetReady     MigrationPhase = "TargetReady"
	MigrationRunning         MigrationPhase = "Running"
	MigrationSucceeded       MigrationPhase = "Succeeded"
	MigrationFailed          MigrationPhase = "Failed"
)

// MigrationPhases are all of them, in their order.
func MigrationPhases() []MigrationPhase {
	return []MigrationPhase{
		MigrationPending, MigrationScheduling, MigrationScheduled, MigrationPreparingTarget, MigrationTargetReady,
		MigrationRunning, MigrationSucceeded, MigrationFailed,
	}
}

// Priorities of a migration.
const (
	PrioritySystemCritical    = "system-critical"
	PriorityUserTriggered     = "user-triggered"
	PrioritySystemMaintenance = "system-maintenance"
)

// VirtualMachineInstanceMigration is the wish to move a VM.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceMigration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VirtualMachineInstanceMigrationSpec   `json:"spec,omitempty"`
	Status VirtualMachineInstanceMigrationStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceMigrationSpec is what was asked for.
type VirtualMachineInstanceMigrationSpec struct {
	VMIName string `json:"vmiName,omitempty"`
	// Priority is nil for a user's.
	Priority *string `json:"priority,omitempty"`
	// AddedNodeSelector restricts the nodes to which this migration may go, beside the
	// launcher pod's own selector, which wins where both have a key.
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
}

// VirtualMachineInstanceMigrationStatus is what is.
type VirtualMachineInstanceMigrationStatus struct {
	Phase                     MigrationPhase             `json:"phase,omitempty"`
	PhaseTransitionTimestamps []MigrationPhaseTransition `json:"phaseTransitionTimestamps,omitempty"`
	MigrationState            *MigrationState            `json:"migrationState,omitempty"`
}

// MigrationPhaseTransition is when a phase began.
type MigrationPhaseTransition struct {
	Phase     MigrationPhase `json:"phase,omitempty"`
	Timestamp metav1.Time    `json:"phaseTransitionTimestamp,omitempty"`
}

// VirtualMachineInstanceMigrationList is a list of migrations.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstanceMigration `json:"items"`
}

// Final reports whether the migration has ended.
func (m *VirtualMachineInstanceMigration) Final() bool {
	return m.Status.Phase == MigrationSucceeded || m.Status.Phase == MigrationFailed
}

// Of reports whether a migration that names a VMI is of this one, and not of a former one of its name: by
// the UID with which it has begun, else by its owner, else by its age.
func (m *VirtualMachineInstanceMigration) Of(v *VirtualMachineInstance) bool {
	if s := m.Status.MigrationState; s != nil && s.VMIUID != "" {
		return s.VMIUID == string(v.UID)
	}
	for _, owner := range m.OwnerReferences {
		if owner.Kind == "VirtualMachineInstance" {
			return owner.UID == v.UID
		}
	}
	return !m.CreationTimestamp.Before(&v.CreationTimestamp)
}

// Reached is when the migration came to a phase; zero if it did not, or does
// not say so.
func (m *VirtualMachineInstanceMigration) Reached(phase MigrationPhase) time.Time {
	for _, t := range m.Status.PhaseTransitionTimestamps {
		if t.Phase == phase {
			return t.Timestamp.Time
		}
	}
	return time.Time{}
}

// Transitions returns the times of the migration's phases with one more. A
// phase that is there keeps its time.
func (m *VirtualMachineInstanceMigration) Transitions(phase MigrationPhase, now time.Time) []MigrationPhaseTransition {
	all := slices.Clone(m.Status.PhaseTransitionTimestamps)
	if slices.ContainsFunc(all, func(t MigrationPhaseTransition) bool { return t.Phase == phase }) {
		return all
	}
	return append(all, MigrationPhaseTransition{Phase: phase, Timestamp: metav1.NewTime(now)})
}
