package agent

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/deadline"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
)

// Cache makes records durable. Its methods block until they are, and may be called for
// different VMs at once.
type Cache interface {
	Put(grace.Record) error
	Delete(domain string) error
}

// Launcher is one launcher directory.
type Launcher interface {
	Look() (watch.View, error)
	WriteStatus(grace.Status) error
	RemoveTrigger(seen grace.TriggerID) error
}

// Watched is a process whose end is seen, and that cannot be signalled.
type Watched interface {
	Done() <-chan struct{}
	StartTime() uint64
	Close() error
}

// Process is a process that cannot be mistaken for another.
type Process interface {
	Watched
	// Signal fails with process.ErrGone if it has ended.
	Signal(unix.Signal) error
	// Exiting reports whether it is exiting already.
	Exiting() bool
	// Arm sends SIGTERM at a time, or at once if that has passed, without the caller or
	// any other part of the agent.
	Arm(at grace.Mono) (Armed, error)
}

// Armed is a SIGTERM that is sent at its time. Its methods do not block.
type Armed interface {
	Move(to grace.Mono)
	// Disarm returns false if the signal is sent or being sent: Sent has the result.
	Disarm() bool
	// Sent gives one value, once it was tried.
	Sent() <-chan deadline.Sent
}

// Processes opens processes. Open and Watch fail with process.ErrGone if the process has
// ended.
type Processes interface {
	// Open fails with process.ErrNoStart without a start time.
	Open(pid int, start uint64) (Process, error)
	// Watch opens whichever process has the pid now.
	Watch(pid int) (Watched, error)
}

// Clock tells the time. Now and the runtime's timers must tick alike.
type Clock interface {
	Now() grace.Mono
	Wall() time.Time
}

// Meter counts what operators watch. Its methods do not block.
type Meter interface {
	Stopped(cause grace.Cause, outcome grace.Outcome, took time.Duration)
	Reacted(cause grace.Cause, after time.Duration)
	Overshot(by time.Duration)
	Asked(mode grace.Mode, result string)
	Destroyed(via string)
	Rejected(reason string)
}

// Cluster is what the API server says. Its methods do not block, but for
// Confirm and FlushEvents.
type Cluster interface {
	// VMI and Pods read memory and do not wait. The agent calls them under its lock, so a
	// caller of ClusterChanged must not hold a lock that they take.
	VMI(namespace, name string) grace.VMI
	Pods(namespace, name string) []grace.Pod
	// Confirm asks what became of the VMI with this UID and creation time. An
	// error comes with grace.FateUnknown.
	Confirm(ctx context.Context, namespace, name, uid string, created time.Time) (grace.Fate, error)
	// Report queues an Event, which is delivered once per Event.Key.
	Report(Event)
	// FlushEvents waits until a VM's reported Events survive this agent, or ctx ends.
	FlushEvents(ctx context.Context, namespace, name string)
}

// Event is a Kubernetes Event about a VMI, or about this node.
type Event struct {
	// OfNode means that it is about this node, and no VM.
	OfNode               bool
	Namespace, Name, UID string
	Reason, Message      string
	Warning              bool
	// Key distinguishes Events of one reason: equal keys are duplicates.
	Key string
	At  time.Time
}

// Config configures an Agent.
type Config struct {
	Policy     grace.Policy
	Hypervisor hypervisor.Driver
	Cache      Cache
	Processes  Processes
	// Launcher returns the launcher directory of a VM; pod is its launcher pod, "" if
	// none is known or needed.
	Launcher func(namespace, name, pod string) Launcher
	// Watch watches the launcher directory of this pod in place of the domain's former
	// one. It does not block.
	Watch func(domain, pod string)
	// Cluster is nil without an API server.
	Cluster Cluster
	// Migration returns a domain's role in a live migration; it is nil without
	// migrations. It does not block. After ClusterChanged it is asked again.
	Migration func(domain string) (grace.Migration, grace.Arrival)
	// Shown is called when what Summary returns has changed; it may be nil. It must not
	// block.
	Shown func()
	Clock Clock
	Meter Meter
	// Inhibitor is nil if the node's shutdown is not delayed. NodeShutdown is a shutdown
	// that an earlier agent of this boot has heard of. SaveNodeShutdown makes one
	// durable, or forgets it. It may block, and the agent waits only briefly.
	Inhibitor        Inhibitor
	NodeShutdown     grace.NodeShutdownTime
	SaveNodeShutdown func(grace.NodeShutdownTime) error
}

// Inhibitor delays the shutdown of the node that the VMs run on.
type Inhibitor interface {
	// Watch delays shutdowns and reports them until ctx ends. It reports the state at its
	// start, and then each change.
	Watch(ctx context.Context, report func(NodeState))
	// Release lets the shutdown that is under way go on. It does not block.
	Release()
}

// NodeState is what is known of the node's shutdown.
type NodeState struct {
	Known        bool // logind can be asked
	Held         bool // a shutdown would be delayed, or is
	ShuttingDown bool
	AtOnce       bool          // it does not wait for the VMs, so no VM waits for its turn
	Delay        time.Duration // how long a shutdown is delayed at most
	Lengthening  bool          // logind is being made to delay it for longer
	SetBy        string        // the file that makes it shorter than requested, "" if none is known
}

// Limits for calls that have no deadline of their own.
const (
	lookTimeout    = 20 * time.Second
	destroyTimeout = 60 * time.Second
	// relist is how long after a list the next one follows; relistFailed is the pause
	// after a list that failed.
	relist       = 60 * time.Second
	relistFailed = 10 * time.Second
	// clusterTimeout is how long a shutdown waits for the API server's first list
	// after the agent's start.
	clusterTimeout = time.Second
	confirmTimeout = 10 * time.Second
	flushTimeout   = 2 * time.Second
)
