package evacuation

import (
	"slices"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// Feature gates, in KubeVirt's spec.configuration.developerConfiguration.
const (
	GatePreemption = "PreemptionEvictionLiveMigration"
	GateNoExecute  = "NoExecuteTaintEvictionLiveMigration"
)

// Settings are what counts for the whole cluster, with every default filled in.
type Settings struct {
	EvictionStrategy  kubevirt.EvictionStrategy // "" where none is stated
	FeatureGates      []string
	PerCluster        int // migrations at the same time
	PerNode           int // of those, away from one node
	Bandwidth         int64
	CompletionPerGiB  time.Duration
	ProgressTimeout   time.Duration
	AllowAutoConverge bool
	DrainTaint        string // key

	LauncherPadding    time.Duration
	MigrationAllowance time.Duration
	PauseAfter         time.Duration
}

// Defaults are the settings of a cluster that states none.
func Defaults() Settings {
	return Settings{
		PerCluster: 5, PerNode: 2,
		CompletionPerGiB: 150 * time.Second, ProgressTimeout: 150 * time.Second,
		DrainTaint:         kubevirt.DefaultDrainTaint,
		LauncherPadding:    v1alpha1.DefaultLauncherPadding,
		MigrationAllowance: v1alpha1.DefaultMigrationAllowance,
		PauseAfter:         v1alpha1.DefaultMigrationAllowance / 2,
	}
}

// Gate reports whether a feature gate is on.
func (s *Settings) Gate(name string) bool { return slices.Contains(s.FeatureGates, name) }
