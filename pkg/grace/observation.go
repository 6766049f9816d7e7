package grace

import "time"

// Policy is what the operator set, with the facts of this boot.
type Policy struct {
	BootID        string
	RetryInterval time.Duration
	AgentTimeout  time.Duration // how long a guest agent may take before ACPI is used
	UseAgent      bool          // --shutdown-mode auto
	// DestroyTimeout is what QEMU gets between SIGTERM and SIGKILL.
	DestroyTimeout time.Duration
	DryRun         bool
}

// Waits that nobody has to tune.
const (
	// savePatience is how long a request waits for a slow disk before the
	// shutdown goes on from memory; at the deadline it is much shorter.
	savePatience         = 2 * time.Second
	saveDeadlinePatience = 20 * time.Millisecond
	// noteDelay is how long a note waits. Most VMs are gone by then; on the disk
	// it would be in the way of another VM's grace period.
	noteDelay = 500 * time.Millisecond
	// saveRetry is how often a failed save is tried again.
	saveRetry = time.Second
	// failedRetry is how soon a request that failed is repeated, where the
	// retry interval is longer: libvirt may be back.
	failedRetry = 500 * time.Millisecond
	// explainPatience is how long libvirt has to say why a VM ended (measured:
	// libvirt 9.0 needs 1.6 s from QEMU's exit to its own last word).
	explainPatience = 4 * time.Second
	explainRetry    = 200 * time.Millisecond
	// lookPatience is how long the end of a VM at rest waits for the first look at
	// its launcher directory.
	lookPatience = 4 * time.Second
	// destroyPatience is when a QEMU that survived SIGKILL is reported.
	destroyPatience  = 30 * time.Second
	destroyRetry     = time.Second
	destroySlowRetry = 30 * time.Second
)

// Presence is whether a domain runs, as far as anybody knows.
type Presence int

// The presences. The zero value is "unknown": an error is never "gone".
const (
	DomainUnknown Presence = iota
	DomainAbsent
	DomainPresent
)

// Shim is what the launcher directory says about its shim.
type Shim int

// The states of a shim. ShimDied is always one that was seen alive beside
// the record's instance; an unlocked vm.json of unknown age is ShimOrphan.
const (
	ShimUnknown Shim = iota
	ShimNone         // no vm.json: none, or it ended in order
	ShimAlive        // vm.json is locked
	ShimOrphan       // vm.json is there, unlocked
	ShimDied
)

// Call is one kind of work the agent does for a VM, at most one at a time.
type Call struct {
	Running bool
	Failed  bool // the last one that ended failed
	Tries   int
	Last    Mono // when the last one was started
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

// Next is the observation for the next instance: what is known of the place,
// not of the instance that ended.
func (o *Observation) Next() Observation {
	n := Observation{
		Looked: o.Looked, Ours: o.Ours, Shim: o.Shim, Holder: o.Holder, UID: o.UID, Look: o.Look,
		Trigger: o.Trigger, TriggerByShim: o.TriggerByShim, TriggerAt: o.TriggerAt,
		VMI: o.VMI, Spent: o.Spent, Moved: o.Moved, VMIBy: o.VMIBy,
		Pod: o.Pod,
	}
	if o.Gone && o.VMI.State == VMIDeleting {
		n.Spent = o.VMI.UID
	}
	return n
}

// Observation is what the agent sees of a VM now. Unlike a Record it does not
// survive the agent.
type Observation struct {
	// Recorded tells whether there is a record at all.
	Recorded bool
	// Looked is set once the launcher directory was read, or could not be.
	Looked bool

	// Ours: there is a launcher directory for it.
	Ours     bool
	Domain   Presence
	Instance Instance // of the domain that is present
	Power    Power
	Agent    bool // a guest agent has its channel open

	// Gone: the record's instance has ended, seen at GoneAt. Its process is the
	// proof; where there is none to watch, libvirt's word that was asked for.
	Gone   bool
	GoneAt Mono
	End    End

	// VMI is what the watch of the API server shows. Spent is the UID of one that
	// says nothing any more: its shutdown is done, or it was lost with its CRD.
	VMI   VMI
	Spent string
	// Fate is what became of the record's VMI, known since FateAt; Moved is the
	// UID of one that went to another node.
	Fate   Fate
	FateAt Mono
	Moved  string
	// Proved is the UID of the one that was there while this instance was, known
	// since ProvedAt.
	Proved   string
	ProvedAt Mono
	// VMIBy is until when a shutdown waits for the API server's word on a VM that
	// it never spoke of: the grace period may be stated there.
	VMIBy Mono
	// AdoptedAt is when the record was made, 0 if that was an earlier agent.
	AdoptedAt Mono

	// Pod is the launcher pod whose directory is looked at, as last shown; of one
	// that was not shown yet there is only the UID.
	Pod Pod

	Shim    Shim
	Holder  Holder // who holds the lock, while ShimAlive
	UID     string // who the launcher says it is, "" if it does not
	Period  Period // what the sources say now
	Trigger bool
	// TriggerByShim: it names its shim's VM, so it ends with that shim.
	TriggerByShim bool
	// TriggerAt and DiedAt are when the agent first saw it.
	TriggerAt, DiedAt Mono

	// Unsaved: the record differs from what is on disk.
	Unsaved bool
	// NotedAt is since when it differs in a note: what only an agent that comes
	// after this one may need, to name the outcome. 0: in none.
	NotedAt Mono
	Save    Call
	Explain Call
	Confirm Call // what became of the VMI
	Look    Call // at the domain
	AskACPI Call
	AskVM   Call // the guest agent
	Resume  Call
	Term    Call
	Kill    Call
	Destroy Call
	// Reported: the failure to destroy was reported.
	Reported bool
}
