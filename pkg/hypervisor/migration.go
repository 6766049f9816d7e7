package hypervisor

import (
	"strings"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// LauncherPrefix begins the UUID of an instance whose process is in its launcher pod; the pod's
// UID follows. libvirt's UUIDs never begin so.
const LauncherPrefix = "launcher:"

// InLauncher reports whether an instance's process is in its launcher pod.
func InLauncher(i grace.Instance) bool { return strings.HasPrefix(i.UUID, LauncherPrefix) }

// Outgoing is a request for a live migration to the hypervisor.
type Outgoing struct {
	Domain   string
	Instance grace.Instance
	// URI is the address of the target's hypervisor.
	URI       string
	Transport Transport
	// Bandwidth is in MiB/s; 0 = no limit.
	Bandwidth uint64
	// AutoConverge slows the guest's CPUs down if it writes faster than the network
	// sends.
	AutoConverge bool
}

// Transport is how the guest's memory reaches the target.
type Transport string

// The transports. The zero value uses the connection to the target's hypervisor, which
// then listens on no other port.
const (
	TransportTunnelled Transport = ""
	// TransportNative is from one QEMU to the other, over a port of its own.
	TransportNative Transport = "native"
	// TransportNativeTLS is TransportNative under QEMU's TLS. It fails if QEMU of one of
	// the two hosts has no certificate.
	TransportNativeTLS Transport = "native-tls"
)

// Progress is how far a migration is. Bytes, of memory and disks together.
type Progress struct {
	Total, Remaining uint64
}

// Stay is the state of a migrating domain on one of the two hosts.
type Stay string

// The stays. The zero value is "unknown": an error is never "absent".
const (
	StayUnknown Stay = ""
	StayAbsent  Stay = "absent" // the hypervisor was asked, and has no such domain
	// StayWaiting means that an empty process waits for a guest. Nothing of it has arrived.
	StayWaiting Stay = "waiting"
	// StayBusy means that a job is under way, mostly a migration's. It ends by itself.
	StayBusy    Stay = "busy"
	StayRunning Stay = "running"
	// StayPaused means that it is whole and does not run, and no job is left. Its user
	// has paused it, or it has arrived.
	StayPaused Stay = "paused"
	// StayStopped is like StayPaused, for another reason, such as an I/O error.
	StayStopped Stay = "stopped"
	// StayNotResumed is like StayStopped: the hypervisor has stopped it for a call of its own, such as
	// a migration that failed, and could not let it go on.
	StayNotResumed Stay = "not-resumed"
	// StayLeft means that it has been sent, whole, and its arrival was not confirmed.
	StayLeft Stay = "left"
)

// Definition is a domain as a live migration sends it.
type Definition struct {
	// XML is libvirt's, of the running domain.
	XML string
	// Autostart means that the host's libvirt starts it by itself.
	Autostart bool
	// DropsCaches means that the hypervisor drops the host's caches of disks at the end
	// of a migration, so that each cache mode is safe.
	DropsCaches bool
	// Snapshots is how many libvirt keeps of it: with one it migrates no domain.
	Snapshots int
}
