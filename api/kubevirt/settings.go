package kubevirt

import (
	"fmt"
	"strings"

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
	// Unknown has the names of the other fields that were read, one a line.
	Unknown string `json:"-"`
}

// KubeVirtConfiguration has the settings. Nil is KubeVirt's default.
type KubeVirtConfiguration struct { //nolint:revive // KubeVirt's own name
	// EvictionStrategy is that of VMIs that state none.
	EvictionStrategy       *EvictionStrategy       `json:"evictionStrategy,omitempty"`
	DeveloperConfiguration *DeveloperConfiguration `json:"developerConfiguration,omitempty"`
	MigrationConfiguration *MigrationConfiguration `json:"migrations,omitempty"`
	Unknown                string                  `json:"-"` // as KubeVirtSpec's
}

// DeveloperConfiguration switches features on.
type DeveloperConfiguration struct {
	FeatureGates []string `json:"featureGates,omitempty"`
	Unknown      string   `json:"-"` // as KubeVirtSpec's
}

// MigrationConfiguration bounds migrations.
type MigrationConfiguration struct {
	ParallelMigrationsPerCluster      *int64  `json:"parallelMigrationsPerCluster,omitempty"`
	ParallelOutboundMigrationsPerNode *int64  `json:"parallelOutboundMigrationsPerNode,omitempty"`
	BandwidthPerMigration             *Amount `json:"bandwidthPerMigration,omitempty"`
	CompletionTimeoutPerGiB           *int64  `json:"completionTimeoutPerGiB,omitempty"` // seconds
	ProgressTimeout                   *int64  `json:"progressTimeout,omitempty"`         // seconds
	AllowAutoConverge                 *bool   `json:"allowAutoConverge,omitempty"`
	NodeDrainTaintKey                 *string `json:"nodeDrainTaintKey,omitempty"`
	Unknown                           string  `json:"-"` // as KubeVirtSpec's
}

// Amount is a quantity as it was written, or a number: whether it is one is found out
// by who reads it, so that one that is none does not hide all other settings.
type Amount string

// UnmarshalJSON takes whatever there is.
func (a *Amount) UnmarshalJSON(text []byte) error {
	*a = Amount(strings.Trim(string(text), `"`))
	return nil
}

// Value is the number that it stands for, rounded up. The error says that it is none.
func (a Amount) Value() (int64, error) {
	q, err := resource.ParseQuantity(string(a))
	if err != nil {
		return 0, fmt.Errorf("%.64q: %w", a, err)
	}
	return q.Value(), nil
}

// KubeVirtList is a list of KubeVirts.
//
// +kubebuilder:object:root=true
type KubeVirtList struct { //nolint:revive // KubeVirt's own name
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubeVirt `json:"items"`
}
