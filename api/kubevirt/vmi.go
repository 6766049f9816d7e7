package kubevirt

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EvictionStrategy is what an eviction of a VM's launcher pod means for the VM.
type EvictionStrategy string

// The strategies. An empty one says nothing.
const (
	StrategyNone                  EvictionStrategy = "None"
	StrategyLiveMigrate           EvictionStrategy = "LiveMigrate"
	StrategyLiveMigrateIfPossible EvictionStrategy = "LiveMigrateIfPossible"
	StrategyExternal              EvictionStrategy = "External"
)

// VMIPhase is where a VM is in its life.
type VMIPhase string

// Phases. Succeeded and Failed are final.
const (
	VMIPending    VMIPhase = "Pending"
	VMIScheduling VMIPhase = "Scheduling"
	VMIScheduled  VMIPhase = "Scheduled"
	VMIRunning    VMIPhase = "Running"
	VMISucceeded  VMIPhase = "Succeeded"
	VMIFailed     VMIPhase = "Failed"
	VMIUnknown    VMIPhase = "Unknown"
)

// Condition types of a VMI.
const (
	// LiveMigratable True: the VM can be moved; False has a reason.
	LiveMigratable = "LiveMigratable"
	// EvictionRequested True: the VM is marked, it is to leave its node.
	EvictionRequested = "EvictionRequested"
	// NodeTaintDetected True: the VM's node has a taint that counts.
	NodeTaintDetected = "NodeTaintDetected"
	// NodeTaintReplacing True: for so long that the VM is to be replaced.
	NodeTaintReplacing = "NodeTaintReplacing"
	// MigrationUndecided True: one of the VM's migrations waits for what somebody has to decide.
	MigrationUndecided = "MigrationUndecided"
)

// ReasonGuestNotRunning is the reason of LiveMigratable of a VM that has ended.
const ReasonGuestNotRunning = "GuestNotRunning"

// ConditionTrue is the status of a condition that holds.
const (
	ConditionTrue  = "True"
	ConditionFalse = "False"
)

// VirtualMachineInstance is a VM that runs.
//
// +kubebuilder:object:root=true
type VirtualMachineInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VirtualMachineInstanceSpec   `json:"spec,omitempty"`
	Status VirtualMachineInstanceStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceSpec is what was asked for.
type VirtualMachineInstanceSpec struct {
	EvictionStrategy *EvictionStrategy `json:"evictionStrategy,omitempty"`
	// TerminationGracePeriodSeconds: nil = the default of the agents.
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// VirtualMachineInstanceStatus is what is.
type VirtualMachineInstanceStatus struct {
	Phase    VMIPhase `json:"phase,omitempty"`
	NodeName string   `json:"nodeName,omitempty"`
	// EvacuationNodeName is the mark: the node that the VM is to leave.
	EvacuationNodeName string `json:"evacuationNodeName,omitempty"`
	// Mark explains the mark, in the patch that sets it.
	Mark *Mark `json:"vmgraceMark,omitempty"`
	// Launcher is set on VMIs whose phase and node cluster-controller writes.
	Launcher *Launcher `json:"vmgraceLauncher,omitempty"`
	// Claim is set by who is about to link a launcher pod. It counts for a while.
	Claim          *Claim          `json:"vmgraceClaim,omitempty"`
	Conditions     []Condition     `json:"conditions,omitempty"`
	MigrationState *MigrationState `json:"migrationState,omitempty"`
	// FencedNodes are nodes from which the VM was moved after they had been fenced, oldest first. A
	// copy of the VM that is left on one was given up.
	FencedNodes []string `json:"vmgraceFencedNodes,omitempty"`
}

// Mark is why a VM is to leave its node.
type Mark struct {
	// NodeName is the node of the mark that this explains: an explanation that is left of
	// another mark counts for nothing.
	NodeName string `json:"nodeName"`
	Cause    string `json:"cause"`
	// Source is EvictionSourceDescheduler, or nobody in particular.
	Source string `json:"source,omitempty"`
	// Cordoned: while the mark stood, the node was seen to be unschedulable or to have the
	// drain taint.
	Cordoned bool `json:"cordoned,omitempty"`
	// Tainted: the same of another taint NoSchedule by which somebody empties the node.
	Tainted bool `json:"tainted,omitempty"`
}

// Launcher is the launcher pod that a VMI's phase is about. Both are empty until there is one.
type Launcher struct {
	Pod    string `json:"pod,omitempty"`
	PodUID string `json:"podUID,omitempty"`
}

// Claim is the word of a launcher pod that is being made, or linked: one at a time has it.
type Claim struct {
	Pod string      `json:"pod"` // its name; without one yet, the UID of the request to make it
	At  metav1.Time `json:"at"`
}

// Condition is one of KubeVirt's: without an observed generation.
type Condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	LastProbeTime      metav1.Time `json:"lastProbeTime,omitempty"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	Reason             string      `json:"reason,omitempty"`
	Message            string      `json:"message,omitempty"`
}

// VirtualMachineInstanceList is a list of VMIs.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstance `json:"items"`
}

// Final reports whether the VM has ended.
func (v *VirtualMachineInstance) Final() bool { return v.Status.Phase.Final() }

// Final reports whether a VM in this phase has ended.
func (p VMIPhase) Final() bool { return p == VMISucceeded || p == VMIFailed }

// Node is the node that the VM runs on: empty before it has one.
func (v *VirtualMachineInstance) Node() string {
	if v.Status.NodeName != "" {
		return v.Status.NodeName
	}
	return v.Labels[NodeNameLabel]
}

// Migratable reports whether the VM can be moved, as far as is known.
func (v *VirtualMachineInstance) Migratable() bool {
	return v.ConditionIs(LiveMigratable, ConditionTrue)
}

// Marked reports whether the VM is to leave the node that it is on. A mark for
// another node is stale and counts as none.
func (v *VirtualMachineInstance) Marked() bool {
	return v.Status.EvacuationNodeName != "" && v.Status.EvacuationNodeName == v.Node()
}

// Condition returns the condition of a type, nil where there is none.
func (v *VirtualMachineInstance) Condition(kind string) *Condition {
	for i := range v.Status.Conditions {
		if v.Status.Conditions[i].Type == kind {
			return &v.Status.Conditions[i]
		}
	}
	return nil
}

// ConditionIs reports whether there is a condition with this status.
func (v *VirtualMachineInstance) ConditionIs(kind, status string) bool {
	c := v.Condition(kind)
	return c != nil && c.Status == status
}
