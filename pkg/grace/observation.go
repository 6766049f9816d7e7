package grace

import "time"

// Policy holds the operator's settings and facts of this boot.
type Policy struct {
	BootID string
	// Asleep is how long the node had been suspended in this boot when the agent started:
	// CLOCK_BOOTTIME less CLOCK_MONOTONIC.
	Asleep        time.Duration
	RetryInterval time.Duration
	AgentTimeout  time.Duration // how long a guest agent may take before ACPI is used
	UseAgent      bool          // --shutdown-mode auto
	// DestroyTimeout is what QEMU gets between SIGTERM and SIGKILL.
	DestroyTimeout time.Duration
	DryRun         bool
	// DefaultPeriod is the grace period where none is stated.
	DefaultPeriod time.Duration
}

// Timeouts and retry intervals that need no flag.
const (
	// saveTimeout is how long a request waits for a slow disk before the
	// shutdown goes on from memory; at the deadline it is much shorter.
	saveTimeout         = 2 * time.Second
	saveDeadlineTimeout = 20 * time.Millisecond
	// noteDelay is how long the save of a note waits. Most VMs are gone by then. An
	// earlier save could delay the grace period of another VM.
	noteDelay = 500 * time.Millisecond
	// slowDisk is when a disk that does not answer counts as failed.
	slowDisk = 10 * time.Second
	// saveEvery is the least time between two saves of a record on which no shutdown
	// depends yet. A launcher that states its grace period can change it any number of
	// times.
	saveEvery = time.Second
	// saveRetry is how often a failed save is tried again.
	saveRetry = time.Second
	// failedRetry is how soon a request that failed is repeated, where the
	// retry interval is longer: libvirt may be back.
	failedRetry = 500 * time.Millisecond
	// explainTimeout is how long libvirt has to say why a VM ended (measured:
	// libvirt 9.0 needs 1.6 s from QEMU's exit to its own last word).
	explainTimeout = 4 * time.Second
	explainRetry   = 200 * time.Millisecond
	// lookTimeout is how long the end of a VM at rest waits for the first look at
	// its launcher directory.
	lookTimeout = 4 * time.Second
	// destroyFailedAfter is when a QEMU that survived SIGKILL is reported.
	destroyFailedAfter = 30 * time.Second
	destroyRetry       = time.Second
	destroySlowRetry   = 30 * time.Second
	// inspectAhead is how long before its signal the process is looked at. In between the
	// agent is to be at rest: what it runs at the deadline delays the signals of many VMs.
	inspectAhead = 400 * time.Millisecond
)

// presence is whether a domain runs, as far as anybody knows.
type presence int

// The presences. The zero value is "unknown": an error is never "gone".
const (
	domainUnknown presence = iota
	domainAbsent
	domainPresent
)

// shim is the state of the shim, as the launcher directory shows it.
type shim int

// The states of a shim. shimDied is always one that was seen alive beside
// the record's instance; an unlocked vm.json of unknown age is shimOrphan.
const (
	shimUnknown shim = iota
	shimNone         // no vm.json: no shim, or it ended in order
	shimAlive        // vm.json is locked
	shimOrphan       // vm.json is there, unlocked
	shimDied
)

// Call is the state of one kind of work for a VM. At most one runs at a time.
type Call struct {
	Running bool
	Failed  bool // the last one that ended failed
	Tries   int
	Last    Mono // when the last one was started
	// instance counts the instance it was started for.
	instance int
}

// due returns when the call may be made again.
func (c *Call) due(interval time.Duration, now Mono) Mono {
	switch {
	case c.Running:
		return Never
	case c.Tries == 0:
		return now
	case c.Failed:
		return c.Last.Add(min(interval, failedRetry))
	default:
		return c.Last.Add(interval)
	}
}

// sources are what may state the grace period, best first.
var sources = [...]Source{SourceVMI, SourceDomain, SourceLauncher}

// The indexes of the sources in observation.Stated.
const (
	byVMI = iota
	byDomain
	byLauncher
)

// stated is what a source of the grace period says now.
type stated struct {
	Read     bool   // it can be read; without a Text it states no period
	Text     string // "" where it states none
	Reported string // the invalid text that was reported
}

// observation is what the agent sees of a VM now. Unlike a Record it does not
// survive the agent.
type observation struct {
	// Recorded reports whether there is a record at all; OnDisk, whether it may be
	// on disk.
	Recorded, OnDisk bool

	// The launcher directory. Looked is set once a read succeeded or failed. DirAt is
	// when to look again without an event. DirReserved is until when looks are used up,
	// at most a burst ahead.
	Looked             bool
	Dir                Directory
	DirWanted          bool
	DirAt, DirReserved Mono

	// The domain. LookAt is when to look at it next.
	Domain         presence
	Instance       Instance // of the domain that is present
	Power          Power
	Paused         string // by what, see Domain
	Agent          bool   // a guest agent has its channel open
	AgentAt        Mono   // when that was first seen
	LookAt         Mono
	UnidentifiedAt Mono     // since when its process is unknown
	Former         Instance // the instance that ended last
	Watched        bool     // its process is held by a handle

	// Gone means that the record's instance has ended, seen at GoneAt. The proof is its
	// process or, if none is known, libvirt's answer to a query.
	Gone   bool
	GoneAt Mono
	End    End
	// OverAt is when Shutdown.Over was seen. OffAt is since when the agent has to end the
	// process of a guest that is off. Exiting means that the process is exiting.
	OverAt, OffAt Mono
	Exiting       bool

	// Owner tells whose VM it is. OwnerBy is until when a shutdown waits for the API
	// server's first list, which may state the grace period.
	Owner   owner
	OwnerBy Mono

	// Pod is the launcher pod as last shown; only its UID if it was not shown yet.
	// Followed is the pod whose directory is looked at. WarnedPod is a pod whose grace
	// period was reported as too short.
	Pod                 Pod
	Followed, WarnedPod string

	// Migration is the domain's role in a live migration.
	Migration Migration

	// Node is the shutdown of the node, zero while none is under way.
	Node NodeShutdownTime
	// NodeTurn is when the VM is to be asked in that shutdown.
	NodeTurn Mono

	Shim   shim
	Holder Holder // who holds the lock, while shimAlive
	DiedAt Mono   // when the agent first saw that it died
	// ShimEndedAt is when the agent first saw that the last living shim had ended, in any
	// way.
	ShimEndedAt Mono
	// DiedWithNode means that the node was shutting down then.
	DiedWithNode bool
	Trigger      bool // there is one that counts
	// TriggerByShim means that it names its shim's VM. It is void once that shim has
	// ended.
	TriggerByShim bool
	TriggerAt     Mono // when the agent first saw it
	TriggerID     TriggerID
	Leftover      TriggerID // a trigger that names another VM, to be removed
	Consumed      TriggerID // counts no more, even if it cannot be removed
	// Told means that the launcher was told that no domain came for the trigger.
	Told bool
	// BegunBy is the trigger that was there when the shutdown began.
	BegunBy TriggerID

	Arrival Arrival // of this instance, where it comes from another node

	// Period follows from what the sources say now.
	Period Period
	Stated [len(sources)]stated

	// Unsaved means that the record differs from the one on disk. Version counts its
	// changes. Saving is the one that is being written.
	Unsaved         bool
	Version, Saving int
	// Urgent means that a shutdown or the next agent depends on the unsaved change.
	// Otherwise the save waits until SaveAfter.
	Urgent    bool
	SaveAfter Mono
	// NotedAt is since when it differs in a note, 0 if in none. Only the next agent may
	// need a note, to name the outcome.
	NotedAt Mono

	Save     Call
	Explain  Call
	Confirm  Call // what became of the VMI
	Look     Call // at the domain
	LookDir  Call // at the launcher directory
	Watch    Call // the process
	Inspect  Call // the process
	AskACPI  Call
	AskAgent Call
	// Refused is what the guest's agent has answered to a request that it refuses. Unheard is why
	// the guest had not shut down when its process was signalled.
	Refused, Unheard string
	SaveWarned       bool // that the deadline cuts a save was reported
	Resume           Call
	Term             Call
	Kill             Call
	Destroy          Call
	WriteStatus      Call // status.json
	Answer           Call // the last status.json, and the trigger's removal
	FlushEvents      Call // Events that were reported
	Remove           Call // a record
	Announced        bool // the shutdown's begin was reported
	// HoldAnnounced means that the hold was reported.
	HoldAnnounced bool
	Restored      bool // it was begun by an agent before this one
	Reported      bool // the failure to destroy was reported

	LastStatus  Status // the last status.json
	Ending      *Ending
	StaleRecord bool // the record of an ended instance is still there, and none has replaced it
}

// newObservation returns the observation of a VM of which nothing was seen yet.
func newObservation(p *Policy) observation {
	return observation{
		DirWanted: true, DirAt: Never, LookAt: 0,
		Period: Period{Length: p.DefaultPeriod, Source: SourceDefault},
	}
}

// next returns the observation for the next instance, without what concerned only the
// ended one.
func (o *observation) next(r *Record, p *Policy) observation {
	n := newObservation(p)
	n.Looked, n.Dir, n.DirAt, n.DirReserved = o.Looked, o.Dir, o.DirAt, o.DirReserved
	n.Look, n.LookDir, n.WriteStatus, n.Remove = o.Look, o.LookDir, o.WriteStatus, Call{Running: o.Remove.Running}
	n.Shim, n.Holder, n.DiedAt, n.DiedWithNode = o.Shim, o.Holder, o.DiedAt, o.DiedWithNode
	n.ShimEndedAt = o.ShimEndedAt
	n.Trigger, n.TriggerByShim, n.TriggerAt, n.TriggerID = o.Trigger, o.TriggerByShim, o.TriggerAt, o.TriggerID
	n.Leftover, n.Consumed, n.LastStatus = o.Leftover, o.Consumed, o.LastStatus
	n.Owner, n.OwnerBy, n.Migration, n.Node = o.Owner.next(), o.OwnerBy, o.Migration, o.Node
	n.Pod, n.Followed, n.WarnedPod = o.Pod, o.Followed, o.WarnedPod
	n.Stated = o.Stated
	n.Stated[byDomain].Read = false
	n.StaleRecord = o.OnDisk || o.StaleRecord
	if n.Former = o.Former; o.Gone {
		n.Former = r.Instance
		n.Owner.ended()
	}
	return n
}
