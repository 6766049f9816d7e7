package kubevirt

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeVirt has the settings that count for the whole cluster.
//
// +kubebuilder:object:root=true
type KubeVirt struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec KubeVirtSpec `json:"spec,omitempty"`
}

// KubeVirtSpec is what was asked for.
type KubeVirtSpec struct { //nolint:revive // KubeVirt's own name
	Configuration KubeVirtConfiguration `json:"configuration,omitempty"`
}

// KubeVirtConfiguration has the settings. Nil is KubeVirt's default.
type KubeVirtConfiguration struct { //nolint:revive // KubeVirt's own name
	// EvictionStrategy is that of VMIs that state none.
	EvictionStrategy       *EvictionStrategy       `json:"evictionStrategy,omitempty"`
	DeveloperConfiguration *DeveloperConfiguration `json:"developerConfiguration,omitempty"`
	MigrationConfiguration *MigrationConfiguration `json:"migrations,omitempty"`
}

// DeveloperConfiguration switches features on.
type DeveloperConfiguration struct {
	FeatureGates []string `json:"featureGates,omitempty"`
}

// MigrationConfiguration bounds migrations.
type MigrationConfiguration struct {
	ParallelMigrationsPerCluster      *int64             `json:"parallelMigrationsPerCluster,omitempty"`
	ParallelOutboundMigrationsPerNode *int64             `json:"parallelOutboundMigrationsPerNode,omitempty"`
	BandwidthPerMigration             *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	CompletionTimeoutPerGiB           *int64             `json:"completionTimeoutPerGiB,omitempty"` // seconds
	ProgressTimeout                   *int64             `json:"progressTimeout,omitempty"`         // seconds
	AllowAutoConverge                 *bool              `json:"allowAutoConverge,omitempty"`
	NodeDrainTaintKey                 *string            `json:"nodeDrainTaintKey,omitempty"`
}

// KubeVirtList is a list of KubeVirts.
//
// +kubebuilder:object:root=true
type KubeVirtList struct { //nolint:revive // KubeVirt's own name
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubeVirt `json:"items"`
}
