package evacuation

import (
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/api/v1alpha1"
)

// Settings of the whole cluster, with defaults filled in.
type Settings struct {
	EvictionStrategy  kubevirt.EvictionStrategy // "" if none is set
	FeatureGates      []string
	PerCluster        int // concurrent migrations
	PerNode           int // of those, with the same source node
	Bandwidth         int64
	CompletionPerGiB  time.Duration
	ProgressTimeout   time.Duration
	AllowAutoConverge bool
	DrainTaint        string // key

	PerTarget     int  // concurrent migrations to one node
	Held          int  // those for which a shutdown is held; 0 = they count for PerCluster and PerNode
	MaxAttempts   int  // failed migrations of a VM in a row, 0 = any number
	ShutdownAfter bool // after MaxAttempts the VM is shut down

	LauncherPadding    time.Duration
	MigrationAllowance time.Duration
	PauseAfter         time.Duration
}

// Defaults returns the settings of a cluster without any.
func Defaults() Settings {
	return Settings{
		PerCluster: 5, PerNode: 2, PerTarget: v1alpha1.DefaultParallelInbound,
		CompletionPerGiB: 150 * time.Second, ProgressTimeout: 150 * time.Second,
		DrainTaint:         kubevirt.DefaultDrainTaint,
		LauncherPadding:    v1alpha1.DefaultLauncherPadding,
		MigrationAllowance: v1alpha1.DefaultMigrationAllowance,
		PauseAfter:         v1alpha1.DefaultMigrationAllowance / 2,
	}
}
