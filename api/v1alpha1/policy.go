package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Name of the one EvacuationPolicy that counts.
const Name = "default"

// Defaults where the policy, or a field of it, is missing.
const (
	DefaultLauncherPadding    = 30 * time.Second
	DefaultMigrationAllowance = 150 * time.Second
	// DefaultTaintReplacementTime is in seconds.
	DefaultTaintReplacementTime      = 1800
	DefaultMaxConcurrentReplacements = 1
	// DefaultParallelInbound is that of ParallelInboundMigrationsPerNode.
	DefaultParallelInbound = 4
)

// Group and version.
const (
	Group   = "vmgrace.io"
	Version = "v1alpha1"
)

// GroupVersion of the kind.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// AddToScheme makes the types known.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &EvacuationPolicy{}, &EvacuationPolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// EvacuationPolicy is how VMs are moved away: cluster-scoped, and only the one
// with Name counts. Its CRD (deploy/crds) validates it.
//
// +kubebuilder:object:root=true
type EvacuationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EvacuationPolicySpec   `json:"spec,omitempty"`
	Status EvacuationPolicyStatus `json:"status,omitempty"`
}

// EvacuationPolicySpec is what was asked for. Nil is the default.
type EvacuationPolicySpec struct {
	// LauncherPadding is what a launcher pod's grace period has over its VM's.
	LauncherPadding *metav1.Duration `json:"launcherPadding,omitempty"`
	// MigrationAllowance is how long a migration may hold up a shutdown.
	MigrationAllowance *metav1.Duration `json:"migrationAllowance,omitempty"`
	// PauseAfter is how long after the launcher's signal a guest that is still being
	// sent is paused, so that its migration ends; 0 pauses nobody. Nil is half the
	// allowance.
	PauseAfter       *metav1.Duration  `json:"pauseAfter,omitempty"`
	TaintReplacement *TaintReplacement `json:"taintReplacement,omitempty"`
	// MaxAttempts is how many migrations of a VM in a row may fail, 0 = any number.
	// AfterAttempts is what happens then: AfterAttemptsWait or AfterAttemptsShutdown.
	MaxAttempts   *int32 `json:"maxAttempts,omitempty"`
	AfterAttempts string `json:"afterAttempts,omitempty"`
	// ParallelInboundMigrationsPerNode bounds the migrations that send their guests to one
	// node.
	ParallelInboundMigrationsPerNode *int32 `json:"parallelInboundMigrationsPerNode,omitempty"`
	// ParallelHeldMigrations bounds the migrations for which a shutdown is held, in place of
	// the other limits. Nil means that those count.
	ParallelHeldMigrations *int32 `json:"parallelHeldMigrations,omitempty"`
}

// Values of AfterAttempts. With AfterAttemptsWait, which is the default, the VM stays. With
// AfterAttemptsShutdown its launcher pod is deleted, so that it is shut down.
const (
	AfterAttemptsWait     = "Wait"
	AfterAttemptsShutdown = "Shutdown"
)

// TaintReplacement is what happens to VMs on tainted nodes.
type TaintReplacement struct {
	// Options name the taints that count. None = off.
	Options []TaintOption `json:"options,omitempty"`
	// TaintReplacementTimeSeconds is how long a VM is left where it is to be
	// replaced.
	TaintReplacementTimeSeconds *int64              `json:"taintReplacementTimeSeconds,omitempty"`
	MaxConcurrentReplacements   *int32              `json:"maxConcurrentReplacements,omitempty"`
	MaxTaintedNodes             *intstr.IntOrString `json:"maxTaintedNodes,omitempty"`
}

// TaintOption is one taint that counts.
type TaintOption struct {
	// Key of the taint; * = every key that has no option of its own.
	Key string `json:"key"`
	// DurationInSeconds is how long the taint may be there; negative = for ever.
	DurationInSeconds int64 `json:"durationInSeconds"`
}

// EvacuationPolicyStatus says what came of it.
type EvacuationPolicyStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Taints that count, of all nodes.
	Taints []NodeTaint `json:"taints,omitempty"`
	// TaintsNotListed are more than fit in.
	TaintsNotListed int32 `json:"taintsNotListed,omitempty"`
	// VMIs on tainted nodes, in the order in which they are replaced.
	VMIs []TaintedVMI `json:"vmis,omitempty"`
	// VMIsNotListed are more than fit in.
	VMIsNotListed int32 `json:"vmisNotListed,omitempty"`
	// NoExecute is what would become of the VMs of each node if that got a NoExecute taint.
	// Nil without the feature gate, and beside KubeVirt.
	NoExecute *NoExecuteEstimate `json:"noExecute,omitempty"`
}

// NoExecuteEstimate has the numbers of VMs of all nodes. It assumes that one node is tainted at
// a time, and that the others have room.
type NoExecuteEstimate struct {
	// InTime are moved before their shutdowns have to begin.
	InTime int32 `json:"inTime"`
	// Late can be moved, but not in time at the limits of the settings.
	Late int32 `json:"late"`
	// NotMovable are shut down.
	NotMovable int32 `json:"notMovable"`
	// MigrationSeconds is how long a migration takes. Measured means that it is the median of
	// the last ones, else it is assumed.
	MigrationSeconds int64 `json:"migrationSeconds"`
	Measured         bool  `json:"measured"`
	// Nodes with VMs, the worst first.
	Nodes []NodeEstimate `json:"nodes,omitempty"`
	// NodesNotListed are more than fit in.
	NodesNotListed int32 `json:"nodesNotListed,omitempty"`
}

// NodeEstimate is the part of a NoExecuteEstimate of one node.
type NodeEstimate struct {
	Name       string `json:"name"`
	VMIs       int32  `json:"vmis"`
	InTime     int32  `json:"inTime"`
	Late       int32  `json:"late"`
	NotMovable int32  `json:"notMovable"`
	// Why those stay that are not movable, as "2 NotHeld, 1 NotMigratable".
	Why string `json:"why,omitempty"`
}

// ConditionNoExecuteReady of the policy: True if each VM that can be moved would be in time.
const ConditionNoExecuteReady = "NoExecuteReady"

// ConditionTaintReplacement of the policy: True while VMs on tainted nodes are
// replaced, False with the reason why none is.
const ConditionTaintReplacement = "TaintReplacement"

// ConditionVirtHandlerTolerates of the policy, beside KubeVirt: False if a NoExecute taint that
// moves VMs would end virt-handler.
const ConditionVirtHandlerTolerates = "VirtHandlerTolerates"

// NodeTaint is a taint of a node.
type NodeTaint struct {
	Node   string `json:"node"`
	Key    string `json:"key"`
	Effect string `json:"effect"`
	// Since is when it was added, or first seen where it does not say that.
	Since metav1.Time `json:"since"`
}

// TaintedVMI is a VMI on a tainted node.
type TaintedVMI struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	// Taint that counts, as key:effect.
	Taint string `json:"taint"`
	// Condition is NodeTaintDetected or NodeTaintReplacing, Since when it holds.
	Condition string      `json:"condition"`
	Since     metav1.Time `json:"since"`
	// Detected is since when its node is tainted.
	Detected metav1.Time `json:"detected"`
	// Due is when the VM gets NodeTaintReplacing, or with that is replaced. None:
	// never.
	Due *metav1.Time `json:"due,omitempty"`
	// Reason in one word why it is not further.
	Reason string `json:"reason,omitempty"`
	// Started is when its replacement began.
	Started *metav1.Time `json:"started,omitempty"`
}

// EvacuationPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type EvacuationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EvacuationPolicy `json:"items"`
}
