// Package tunnel passes one incoming migration to libvirt, and nothing else.
//
// Access to libvirt's socket is equivalent to root on the node. Another node's agent must
// not get that, so its libvirt RPC passes a strict state machine. It lets the calls of one
// tunnelled migration pass in their order, one at a time, for exactly qemu:///system, the
// agreed name and UUID, and fixed flags. The domain may have known elements only, and name
// nothing of this host but what the operator allows. Parsed arguments and XML are serialized
// again before they are passed on, because Go and libxml2 may parse the same bytes
// differently. Anything else is a *Refusal, which ends the connection.
//
// The protocol is that of libvirt 9.0.0: src/rpc/virnetprotocol.x and
// src/remote/remote_protocol.x.
package tunnel

import "fmt"

// Agreement is what one migration may do on this node.
type Agreement struct {
	// Domain and UUID are the domain's name and UUID in libvirt.
	Domain, UUID string
	// Paths are the directories and files of this host that a domain may write to: disks,
	// logs, nvram.
	Paths []string
	// Firmware are paths that a domain may only read, beside FirmwarePaths.
	Firmware []string
	// Networks are the bridges and libvirt networks that it may be connected to: NAME, with
	// the VLAN 42 NAME.42, and user for QEMU's own network, which reaches whatever this host does.
	Networks []string
	// Listen are the addresses that its VNC and SPICE may listen on, beside the loopback.
	Listen []string
	// Processors and NUMANodes are what this host has online, as the kernel lists it (0-7); ""
	// if unknown. Nothing is pinned to others.
	Processors, NUMANodes string
	// Memory in bytes and CPUs are the most that it may have; 0 means maxMemory and maxCPUs.
	Memory uint64
	CPUs   int
	// Files are this host's. If nil, paths are compared as text only.
	Files *Files
}

// Refusal is the error of a connection on which the source has sent something that one
// incoming migration may not. Reason is one of the constants below, for a metric's label.
type Refusal struct {
	Reason, Text string
}

func (r *Refusal) Error() string { return "refused: " + r.Text }

// The reasons of a Refusal.
const (
	ReasonFrame  = "frame"  // not a frame of libvirt's RPC, or too large
	ReasonCall   = "call"   // a call out of order
	ReasonParam  = "param"  // a parameter or an argument of a call
	ReasonDomain = "domain" // the domain's XML
	ReasonPath   = "path"   // a path or network of this host that the operator does not allow
	ReasonCookie = "cookie" // the migration cookie
	ReasonRate   = "rate"   // more than a migration needs
	ReasonIdle   = "idle"   // the source does not go on
)

func refuse(reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Text: fmt.Sprintf(format, args...)}
}
