package grace

// Phase is the stage that a VM has reached under a grace period.
type Phase string

// The phases. Only a launcher's status shows Stopped: a stopped VM has no record.
const (
	Running Phase = "Running"
	// Held means that the guest was not asked yet: the VM may be moved instead.
	Held         Phase = "Held"
	ShuttingDown Phase = "ShuttingDown"
	Destroying   Phase = "Destroying"
	Stopped      Phase = "Stopped"
)

// Cause is why a shutdown began. The first cause wins.
type Cause string

// The causes.
const (
	VMIDeleted     Cause = "VMIDeleted"
	LauncherSignal Cause = "LauncherSignal"
	LauncherDied   Cause = "LauncherDied"
	NodeShutdown   Cause = "NodeShutdown"
	// NodeFenced means that the VM runs elsewhere since this node was declared dead: the instance
	// here was given up, and gets no grace period.
	NodeFenced Cause = "NodeFenced"
)

// The reasons for which a shutdown may be held, as in Kubernetes (condition
// DisruptionTarget of a pod). While it is held, the reason is shown as its cause.
const (
	PreemptionByScheduler  Cause = "PreemptionByScheduler"
	DeletionByTaintManager Cause = "DeletionByTaintManager"
)

// Outcome is how a shutdown ended.
type Outcome string

// The outcomes.
const (
	// Forced means that the agent signalled QEMU first, whatever libvirt reports
	// afterwards.
	Forced Outcome = "Forced"
	// Graceful means that the guest powered off after a request.
	Graceful Outcome = "Graceful"
	// Lost means that the VM crashed, or that another program destroyed, migrated or
	// saved it.
	Lost Outcome = "Lost"
	// Migrated means that the VM continues on another node.
	Migrated Outcome = "Migrated"
	// AlreadyStopped means that the VM was gone, or powered off, before it was asked.
	AlreadyStopped Outcome = "AlreadyStopped"
)

// Source is where a grace period was stated.
type Source string

// The sources, best first.
const (
	SourceVMI      Source = "vmi"
	SourceDomain   Source = "domain"
	SourceLauncher Source = "launcher"
	SourceDefault  Source = "default"
)

// Power is what a domain is doing.
type Power string

// The powers. PowerUnknown is not "off": libvirt could not be asked.
const (
	PowerUnknown     Power = ""
	PowerOn          Power = "on"
	PowerPaused      Power = "paused"       // by a user or an API client: may be resumed
	PowerPausedOther Power = "paused-other" // paused for any other reason: I/O error, migration, ...
	PowerSuspended   Power = "suspended"    // PMSUSPENDED: may be woken
	PowerEnding      Power = "ending"       // libvirt's state SHUTDOWN: the guest is off, QEMU not yet gone
	PowerOff         Power = "off"          // the guest is off; only the agent ends its process
	PowerCrashed     Power = "crashed"      // it has panicked and hears nothing; only the agent ends its process
)

// End is why an instance ended.
type End string

// The ends.
const (
	EndUnknown   End = ""
	EndGuest     End = "guest"     // the guest powered off
	EndExited    End = "exited"    // its process ended while nobody watched it, and no log says why
	EndDestroyed End = "destroyed" // by a destroy or a signal
	EndKilled    End = "killed"    // by a signal of an agent, or of a process that has ended since
	EndCrashed   End = "crashed"
	EndMoved     End = "moved"
	EndSaved     End = "saved"
	EndFailed    End = "failed"
)

// GoesOn reports whether the guest goes on, elsewhere or later.
func (e End) GoesOn() bool { return e == EndMoved || e == EndSaved }

// Crashed reports whether the VM crashed, as far as is known: nobody says otherwise.
func (e End) Crashed() bool { return e == EndCrashed || e == EndFailed || e == EndUnknown }

// Over is a sign of the end that was seen before the agent signalled the process.
type Over string

// The signs of an end.
const (
	GuestOff Over = "guest-off" // the guest had powered off
	Exiting  Over = "exiting"   // the process was exiting, whatever had ended it
	Crashed  Over = "crashed"   // the guest had crashed, and its process was kept
)

// Mode is a way to ask a guest to shut down.
type Mode string

// The modes.
const (
	ModeAgent Mode = "agent"
	ModeACPI  Mode = "acpi"
)
