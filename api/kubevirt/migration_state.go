package kubevirt

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// States that the agents report of their side of a migration. Each is final, except
// TargetArrived, which TargetRunning or TargetAbsent follows.
const (
	// SourceGone: QEMU of the source has ended, and the guest did not run on
	// there after libvirt's migration was over: the arrived one may run.
	SourceGone = "Gone"
	// SourceRunning: the guest ran on at the source: the arrived one is stale.
	SourceRunning = "Running"

	// TargetArrived: all of the guest is there, paused.
	TargetArrived = "Arrived"
	// TargetRunning: it was resumed there.
	TargetRunning = "Running"
	// TargetAbsent: it is not there, and will not be by this migration.
	TargetAbsent = "Absent"
)

// MigrationMode is how a guest is sent.
type MigrationMode string

// MigrationPaused is KubeVirt's mode of a migration whose guest was paused.
const MigrationPaused MigrationMode = "Paused"

// MigrationTransport is how a guest's memory reaches the target.
type MigrationTransport string

// TransportNative is libvirt of the source sending it by itself. The zero value is
// through the connection between the two agents.
const TransportNative MigrationTransport = "Native"

// MigrationState is the last or present migration of a VM. A VMI's is a copy of
// the migration's with less in it.
type MigrationState struct {
	MigrationUID string `json:"migrationUid,omitempty"`
	// VMIUID is the UID of the VMI that is moved: one made anew under its name
	// is another VM.
	VMIUID string `json:"vmiUID,omitempty"`
	// GracePeriodSeconds is the VMI's terminationGracePeriodSeconds as the migration
	// began: the target's agent knows it before the VMI is shown as its node's.
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`

	SourceNode   string `json:"sourceNode,omitempty"`
	SourcePod    string `json:"sourcePod,omitempty"`
	SourcePodUID string `json:"sourcePodUID,omitempty"`
	TargetNode   string `json:"targetNode,omitempty"`
	TargetPod    string `json:"targetPod,omitempty"`
	TargetPodUID string `json:"targetPodUID,omitempty"`
	// TargetNodeAddress is where the target's agent listens, host:port.
	TargetNodeAddress string `json:"targetNodeAddress,omitempty"`
	// Transport is how the target's agent expects the guest.
	Transport MigrationTransport `json:"transport,omitempty"`

	// DomainUUID is libvirt's UUID of the guest, canonical, which the source's agent has
	// written before the target's offers to take the guest. No other domain is let in.
	DomainUUID string `json:"vmgraceDomainUUID,omitempty"`

	Options  *MigrationOptions  `json:"options,omitempty"`
	Progress *MigrationProgress `json:"progress,omitempty"`

	// SourceState and TargetState are the states that the two agents have reported, or empty.
	// KubeVirt's sourceState and targetState are objects.
	SourceState string `json:"vmgraceSourceState,omitempty"`
	TargetState string `json:"vmgraceTargetState,omitempty"`
	// SourceFenced and TargetFenced are what declared a node dead, whose agent's state the
	// controller has written in its place.
	SourceFenced string `json:"vmgraceSourceFenced,omitempty"`
	TargetFenced string `json:"vmgraceTargetFenced,omitempty"`
	// Mode is MigrationPaused once the source's agent has paused the guest so that
	// its migration ends, at PauseTimestamp.
	Mode           MigrationMode     `json:"mode,omitempty"`
	PauseTimestamp *metav1.MicroTime `json:"pauseTimestamp,omitempty"`
	// ResumeTimestamp is when the guest ran at the target, by the target's clock.
	ResumeTimestamp *metav1.MicroTime `json:"resumeTimestamp,omitempty"`
	// GuestPaused: its user had paused the guest when it was sent, and it stays so.
	GuestPaused bool `json:"vmgraceGuestPaused,omitempty"`
	// DowntimeMilliseconds is the guest's downtime as measured by the source's agent; 0 =
	// unknown.
	DowntimeMilliseconds int64 `json:"downtimeMilliseconds,omitempty"`
	// AbortRequested: the migration is to end, the guest to stay.
	AbortRequested bool `json:"abortRequested,omitempty"`
	// WaitsFor is what the migration waits for before it is handed to the agents, in one line.
	WaitsFor string `json:"vmgraceWaitsFor,omitempty"`

	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	EndTimestamp   *metav1.Time `json:"endTimestamp,omitempty"`
	Completed      bool         `json:"completed,omitempty"`
	Failed         bool         `json:"failed,omitempty"`
	FailureReason  string       `json:"failureReason,omitempty"`
}

// SetPaused sets the mode and the time of a pause.
func (s *MigrationState) SetPaused(at time.Time) {
	s.Mode, s.PauseTimestamp = MigrationPaused, &metav1.MicroTime{Time: at}
}

// FailureNoRoom ends the failureReason of a migration whose turn did not come in time.
const FailureNoRoom = "the limits of the settings (parallelMigrationsPerCluster, parallelOutboundMigrationsPerNode, parallelInboundMigrationsPerNode, parallelHeldMigrations) leave no room"

// MigrationWaitsForTurn is WaitsFor of a migration that nobody has written yet: the CRD's default.
const MigrationWaitsForTurn = "its turn"

// MigrationOptions bound one migration. They are the cluster's settings as they
// were when it began.
type MigrationOptions struct {
	// BandwidthMiB is MiB/s, 0 = no limit.
	BandwidthMiB int64 `json:"bandwidthMiB,omitempty"`
	// CompletionTimeoutPerGiB and ProgressTimeout are seconds, 0 = no limit.
	CompletionTimeoutPerGiB int64 `json:"completionTimeoutPerGiB,omitempty"`
	ProgressTimeout         int64 `json:"progressTimeout,omitempty"`
	AllowAutoConverge       bool  `json:"allowAutoConverge,omitempty"`
	// PauseAfter is in seconds: how long after its launcher was signalled a guest
	// that is still being sent is paused, where the shutdown is held for it. 0 = it
	// is not.
	PauseAfter int64 `json:"pauseAfter,omitempty"`
}

// MigrationProgress is how far it is, as libvirt counts.
type MigrationProgress struct {
	Percent      int64 `json:"percent"` // 0 to 100
	RemainingMiB int64 `json:"remainingMiB"`
	TotalMiB     int64 `json:"totalMiB,omitempty"`
}
