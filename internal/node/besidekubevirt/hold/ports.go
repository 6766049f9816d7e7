// Package hold keeps the launchers of a node waiting, before their guests are asked to shut
// down, while their VMs are moved instead. It does so beside KubeVirt, which asks and destroys
// the guests itself.
//
// A preStop hook of the launcher makes the file shutdown in the launcher directory, waits
// briefly for the file answered, and then while the file held is there. The rules and the
// latest moment are those of [grace.HoldFacts]. Whatever cannot be found out lets go.
package hold

import (
	"context"
	"log/slog"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// Launcher is a launcher pod of this node.
type Launcher struct {
	Namespace, Name string // the pod's own
	VM              string // its VMI's name, in the same namespace
	// Compute is the ID of the container that QEMU runs in, without its runtime's name, "" while
	// it is not known.
	Compute string
	// Hook means that the pod waits for an answer before its guest is asked.
	Hook bool
	// DeletedAt is when the API server was asked to delete the pod, by its clock.
	DeletedAt time.Time
	grace.Pod
}

// VM is a VMI of this node.
type VM struct {
	grace.VMI
	// Moving means that a migration away from this node is under way. Left means that the VM runs
	// elsewhere.
	Moving, Left bool
}

// Cluster is what the API server says. Launchers and VM read memory and do not wait. Report
// queues.
type Cluster interface {
	Launchers() []Launcher
	VM(namespace, name string) VM
	// Launcher asks for a launcher pod by its own name.
	Launcher(ctx context.Context, namespace, name string) (Launcher, error)
	// Moves asks whether the VMI has a migration that is not over.
	Moves(ctx context.Context, namespace, name string) (bool, error)
	// Confirm asks what became of the VMI with this UID and creation time. An error comes with
	// grace.FateUnknown.
	Confirm(ctx context.Context, namespace, name, uid string, created time.Time) (grace.Fate, error)
	Report(agent.Event)
}

// Directory is a launcher directory.
type Directory interface {
	LookAtHold() (watch.HoldView, error)
	Hold() error
	Release() error
}

// Records makes holds durable. Its methods block until they are.
type Records interface {
	Put(grace.Record) error
	Delete(domain string) error
}

// Clock tells the time. Now and the runtime's timers must tick alike.
type Clock interface {
	Now() grace.Mono
	Wall() time.Time
}

// Config configures a Keeper. All fields are required.
type Config struct {
	BootID  string
	Cluster Cluster
	Records Records
	Clock   Clock
	// Directory returns the launcher directory of a pod. Watch has LauncherChanged called when it
	// may have changed, Unwatch no longer.
	Directory func(uid, namespace, vm string) Directory
	Watch     func(uid, namespace, vm string)
	Unwatch   func(uid string)
	// Ended is called when a hold has ended, with its outcome.
	Ended func(Outcome)
	Log   *slog.Logger
}

// Outcome is how a hold ended.
type Outcome string

// The outcomes.
const (
	Moved        Outcome = "Moved"
	VMIDeleted   Outcome = "VMIDeleted"
	NodeShutdown Outcome = "NodeShutdown"
	NotMarked    Outcome = "NotMarked" // nobody was to move the VM
	NotMoved     Outcome = "NotMoved"  // the move failed, or was called off
	TimeIsOver   Outcome = "TimeIsOver"
	LauncherGone Outcome = "LauncherGone"
)
