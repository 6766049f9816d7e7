package kube

import (
	"log/slog"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Config is what a Source is made of. All but Kubeconfig must be set.
type Config struct {
	// Kubeconfig is a file; empty means the service account of the pod.
	Kubeconfig string
	// Node is this node's name.
	Node string
	Log  *slog.Logger
	Now  func() grace.Mono
	// Shelf may be nil.
	Shelf Shelf
	// Changed is called with the namespace and name of a VMI whenever what VMI
	// or Pods says of it may have changed; with empty ones when that is so of
	// all: VMIs were listed for the first time. It must not block.
	Changed func(namespace, name string)
}

// VMI is what the API server says of a VMI on this node.
type VMI struct {
	UID     string
	Created time.Time
	// Grace is the decimal text of spec.terminationGracePeriodSeconds, "" where
	// it is absent. Whatever else stands there is given as it is, at most 64
	// bytes of it.
	Grace string
	// Deleting: the object has a deletionTimestamp.
	Deleting bool
	// DeletingAt is when this process first saw that; grace.Never if it is not so.
	DeletingAt grace.Mono
}

// Pod is a launcher pod on this node.
type Pod struct {
	UID     string // safe as a name of a directory
	VMI     string // the UID of its VMI, by the label created-by
	Created time.Time
	Done    bool // its containers have ended and will not start again
	// Deleting: the object has a deletionTimestamp.
	Deleting bool
	// DeletingAt is when this process first saw that; grace.Never if it is not so.
	DeletingAt grace.Mono
	// DeletionGrace is what the pod gets between its deletion and its kill.
	DeletionGrace time.Duration
	// KillAt is the earliest time of kubelet's kill that an update has meant:
	// its first sight plus DeletionGrace. grace.Never if it is not deleting.
	KillAt grace.Mono
	// GracePeriod is spec.terminationGracePeriodSeconds.
	GracePeriod time.Duration
}

// Event is to be told about a VMI.
type Event struct {
	Namespace, Name, UID string // of the VMI
	Reason               string // CamelCase
	Message              string
	Warning              bool
	// Key tells Events of one reason on one VMI apart: with the same key there
	// is never more than one, not even after a restart.
	Key string
	// At is when it happened, not when it is delivered.
	At time.Time
}
