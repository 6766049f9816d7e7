package grace

import "time"

// Policy is what the operator set, with the facts of this boot.
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
	// noteDelay is how long a note waits. Most VMs are gone by then; on the disk
	// it would be in the way of another VM's grace period.
	noteDelay = 500 * time.Millisecond
	// slowDisk is when a disk that does not answer counts as one that fails.
	slowDisk = 10 * time.Second
	// saveEvery is how often at most a record is saved of which no shutdown depends yet:
	// whose launcher states its grace period can change it as often as it likes.
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
	// inspectAhead is how long before its signal the process is looked at.
	inspectAhead = 20 * time.Millisecond
)

// presence is whether a domain runs, as far as anybody knows.
type presence int

// The presences. The zero value is "unknown": an error is never "gone".
const (
	domainUnknown presence = iota
	domainAbsent
	domainPresent
)

// Shim is what the launcher directory says about its shim.
type shim int

// The states of a shim. shimDied is always one that was seen alive beside
// the record's instance; an unlocked vm.json of unknown age is shimOrphan.
const (
	shimUnknown shim = iota
	shimNone         // no vm.json: none, or it ended in order
	shimAlive        // vm.json is locked
	shimOrphan       // vm.json is there, unlocked
	shimDied
)

// Call is one kind of work the agent does for a VM, at most one at a time.
type Call struct {
	Running bool
	Failed  bool // the last one that ended failed
	Tries   int
	Last    Mono // when the last one was started
	// instance is which one of the VM it was started for.
	instance int
}

// due tells when the call may be made again.
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

// The places of the sources in observation.Stated.
const (
	byVMI = iota
	byDomain
	byLauncher
)

// stated is what a source of the grace period says now.
type stated struct {
	Read     bool   // it can be read; what it does not state, it does not state
	Text     string // "" where it states none
	Reported string // the invalid text that was reported
}

// observation is what the agent sees of a VM now. Unlike a Record it does not
// survive the agent.
type observation struct {
	// Recorded reports whether there is a record at all; OnDisk, whether it may be
	// on disk.
	Recorded, OnDisk bool

	// The launcher directory: Looked is set once it was read, or could not be.
	// DirAt is when to look again, unasked; DirReserved until when looks are used up,
	// at most a burst ahead.
	Looked             bool
	Dir                Directory
	DirWanted          bool
	DirAt, DirReserved Mono

	// The domain. LookAt is when to look at it, unasked.
	Domain         presence
	Instance       Instance // of the domain that is present
	Power          Power
	Agent          bool // a guest agent has its channel open
	LookAt         Mono
	UnidentifiedAt Mono     // since when its process is unknown
	Former         Instance // the instance that ended last
	Watched        bool     // its process is held by a handle

	// Gone: the record's instance has ended, seen at GoneAt. Its process is the
	// proof; where there is none to watch, libvirt's answer to a query.
	Gone   bool
	GoneAt Mono
	End    End
	// OverAt is when the end was seen that Shutdown.Over is about; OffAt, since when
	// the agent is to end the process of a guest that is off. Exiting: the process is on
	// its way out.
	OverAt, OffAt Mono
	Exiting       bool

	// Owner is whose VM it is. OwnerBy is until when a shutdown waits for the API
	// server's first list: the grace period may be stated there.
	Owner   owner
	OwnerBy Mono

	// Pod is the launcher pod as last shown; of one that was not shown yet there is
	// only the UID. Followed is the one whose directory is looked at, WarnedPod one
	// whose grace period was reported as too short.
	Pod                 Pod
	Followed, WarnedPod string

	// Migration is what a live migration has to do with the domain.
	Migration Migration

	// Node is the shutdown of the node, zero while none is under way.
	Node NodeShutdownTime
	// NodeTurn is when the VM is to be asked then.
	NodeTurn Mono

	Shim   shim
	Holder Holder // who holds the lock, while shimAlive
	DiedAt Mono   // when the agent first saw that it died
	// ShimEndedAt is when the agent first saw that the last one that lived does no more, in
	// whatever way.
	ShimEndedAt Mono
	// DiedWithNode: the node was shutting down then.
	DiedWithNode bool
	Trigger      bool // there is one that counts
	// TriggerByShim: it names its shim's VM, so it is void once that shim has ended.
	TriggerByShim bool
	TriggerAt     Mono // when the agent first saw it
	TriggerID     TriggerID
	Leftover      TriggerID // a trigger that names another VM, to be removed
	Consumed      TriggerID // did its work, and counts no more even if it cannot be removed
	// Told: the launcher was told that no domain came for the trigger that counts.
	Told bool
	// BegunBy is the trigger that was there when the shutdown began.
	BegunBy TriggerID

	Arrival Arrival // of this instance, where it comes from another node

	// Period follows from what the sources say now.
	Period Period
	Stated [len(sources)]stated

	// Unsaved: the record differs from what is on disk. Version counts its
	// changes, Saving is the one that is being written.
	Unsaved         bool
	Version, Saving int
	// Urgent: a shutdown depends on what is unsaved, or an agent that comes after this one.
	// Else it is not saved before SaveAfter.
	Urgent    bool
	SaveAfter Mono
	// NotedAt is since when it differs in a note: what only an agent that comes
	// after this one may need, to name the outcome. 0: in none.
	NotedAt Mono

	Save        Call
	Explain     Call
	Confirm     Call // what became of the VMI
	Look        Call // at the domain
	LookDir     Call // at the launcher directory
	Watch       Call // the process
	Inspect     Call // the process
	AskACPI     Call
	AskAgent    Call
	Resume      Call
	Term        Call
	Kill        Call
	Destroy     Call
	WriteStatus Call // status.json
	Answer      Call // the last status.json, and the trigger's removal
	FlushEvents Call // Events that were reported
	Remove      Call // a record
	Announced   bool // the shutdown's begin was reported
	// HoldAnnounced: that the shutdown is held was reported.
	HoldAnnounced bool
	Restored      bool // it was begun by an agent before this one
	Reported      bool // the failure to destroy was reported

	LastStatus  Status // the last status.json
	Ending      *Ending
	StaleRecord bool // the record of an instance that ended is still there, and no other in its place
}

// newObservation is one of a VM of which nothing was seen yet.
func newObservation(p *Policy) observation {
	return observation{
		DirWanted: true, DirAt: Never, LookAt: 0,
		Period: Period{Length: p.DefaultPeriod, Source: SourceDefault},
	}
}

// next is the observation for the next instance: what is known of the place,
// not of the instance that ended.
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
