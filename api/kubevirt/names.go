package kubevirt

// Labels and annotations of KubeVirt's (kubevirt.io/api, core/v1/types.go).
const (
	// AppLabel tells launcher pods (LauncherApp) and hotplug pods (HotplugApp).
	AppLabel    = "kubevirt.io"
	LauncherApp = "virt-launcher"
	HotplugApp  = "hotplug-disk"

	// CreatedByLabel on a pod is the UID of its VMI.
	CreatedByLabel = "kubevirt.io/created-by"
	// DomainAnnotation on a launcher pod is the name of its VMI.
	DomainAnnotation = "kubevirt.io/domain"
	// NodeNameLabel on a VMI is the node that it runs on.
	NodeNameLabel = "kubevirt.io/nodeName"
	// MigrationJobLabel on a pod is the UID of the migration whose target it is.
	MigrationJobLabel = "kubevirt.io/migrationJobUID"
	// VMINameLabel on a migration is the name of its VMI.
	VMINameLabel = "kubevirt.io/vmi-name"
	// MigrationTargetLabel on a VMI is the node that it is being moved to.
	MigrationTargetLabel = "kubevirt.io/migrationTargetNodeName"
	// MigrationNameLabel on a budget is the migration that it was expanded for.
	MigrationNameLabel = "kubevirt.io/migrationName"

	// EvictionSourceAnnotation on a VMI says who asked for the eviction that
	// marked it: EvictionSourceDescheduler, or nobody in particular.
	EvictionSourceAnnotation  = "kubevirt.io/eviction-source"
	EvictionSourceDescheduler = "descheduler"

	// EvacuationMigrationAnnotation on a migration is the node that it empties.
	EvacuationMigrationAnnotation = "kubevirt.io/evacuationMigration"
)

// Names of pods that the eviction webhook is asked about.
const (
	LauncherPrefix = "virt-launcher"
	HotplugPrefix  = "hp-volume-"
)

// The descheduler's annotations.
const (
	RequestedByAnnotation        = "requested-by" // on an Eviction
	Descheduler                  = "sigs.k8s.io/descheduler"
	RequestEvictOnlyAnnotation   = "descheduler.alpha.kubernetes.io/request-evict-only"
	EvictionInProgressAnnotation = "descheduler.alpha.kubernetes.io/eviction-in-progress"
)

// DefaultDrainTaint is the key of the taint that asks for a node to be emptied.
const DefaultDrainTaint = "kubevirt.io/drain"
