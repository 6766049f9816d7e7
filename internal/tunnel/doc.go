// Package tunnel lets one incoming migration through to libvirt, and nothing
// else.
//
// Whoever may talk to libvirt's socket is root on its node. The agent of another
// node is not meant to be, so what it sends as libvirt's RPC goes through a strict
// machine: the calls of one tunnelled migration in their order, one at a time,
// exactly qemu:///system, the agreed name and UUID, the agreed flags, and a domain
// of known elements that names nothing of this host but what its operator allows.
// What was understood is written anew and passed on, because Go and libxml2 need
// not read the same bytes alike. Anything else is a *Refusal, which ends the
// connection.
//
// The numbers and shapes are those of libvirt 9.0.0: src/rpc/virnetprotocol.x and
// src/remote/remote_protocol.x.
package tunnel

import "fmt"

// Agreement is what was agreed of one migration.
type Agreement struct {
	// Domain and UUID are libvirt's name and UUID of the domain.
	Domain, UUID string
	// Paths are the directories, or files, of this host that a domain may name.
	Paths []string
	// Networks are the bridges and the networks of libvirt's that it may be
	// connected to.
	Networks []string
}

// Refusal is why a connection was ended: the other side sent what one incoming
// migration does not. Reason is one of a fixed set, for a metric's label.
type Refusal struct {
	Reason, Text string
}

func (r *Refusal) Error() string { return "refused: " + r.Text }

// The reasons of a Refusal.
const (
	ReasonFrame  = "frame"  // no frame of libvirt's RPC, or too large
	ReasonCall   = "call"   // a call that is not due
	ReasonParam  = "param"  // a parameter or an argument of a call
	ReasonDomain = "domain" // the domain's XML
	ReasonPath   = "path"   // something of this host that the operator does not allow
	ReasonCookie = "cookie" // the migration cookie
)

func refuse(reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Text: fmt.Sprintf(format, args...)}
}
