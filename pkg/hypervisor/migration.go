package hypervisor

import "github.com/vmgrace/vmgrace/pkg/grace"

// Outgoing is a live migration as it is asked of the hypervisor.
type Outgoing struct {
	Domain   string
	Instance grace.Instance
	// URI is where the target's hypervisor is reached.
	URI       string
	Transport Transport
	// Bandwidth is in MiB/s; 0 = no limit.
	Bandwidth uint64
	// AutoConverge has the guest's CPUs slowed down where it writes faster than the
	// network takes.
	AutoConverge bool
}

// Transport is how the guest's memory reaches the target.
type Transport string

// The transports. The zero value is through the connection to the target's
// hypervisor, which listens for nothing else then.
const (
	TransportTunnelled Transport = ""
	// TransportNative is from one QEMU to the other, over a port of its own.
	TransportNative Transport = "native"
	// TransportNativeTLS is that under QEMU's TLS. It fails where QEMU of one of the
	// two hosts has no certificate.
	TransportNativeTLS Transport = "native-tls"
)

// Progress is how far a migration is. Bytes, of memory and disks together.
type Progress struct {
	Total, Remaining uint64
}

// Stay is what a domain that migrates is on one of the two hosts.
type Stay string

// The stays. The zero value is "unknown": an error is never "absent".
const (
	StayUnknown Stay = ""
	StayAbsent  Stay = "absent" // the hypervisor was asked, and has no such domain
	// StayBusy: a job is under way, a migration's most of all. It ends by itself.
	StayBusy    Stay = "busy"
	StayRunning Stay = "running"
	// StayPaused: it is whole and does not run, and no job is left. Its user has paused it,
	// or it has arrived.
	StayPaused Stay = "paused"
	// StayStopped: as StayPaused, for another reason, such as an I/O error.
	StayStopped Stay = "stopped"
	// StayLeft: it has been sent, whole, and nobody has said that it arrived.
	StayLeft Stay = "left"
)

// Definition is a domain as a live migration sends it.
type Definition struct {
	// XML is libvirt's, of the domain that runs.
	XML string
	// Autostart: the host's libvirt starts it by itself.
	Autostart bool
	// DropsCaches: the hypervisor drops the host's caches of disks at the end of a
	// migration, so that each cache mode is safe.
	DropsCaches bool
}
