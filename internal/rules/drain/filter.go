package drain

import "time"

// Policy is the value of a pod's label PolicyLabel.
type Policy string

// PolicyLabel on a pod, and its values. Any other value has no effect.
const (
	PolicyLabel = "vmgrace.io/drain"

	// Skip leaves the pod.
	Skip Policy = "Skip"
	// WaitCompleted means that the pod is not evicted: the drain waits until it has
	// ended.
	WaitCompleted Policy = "WaitCompleted"
)

// Pod has the properties of a pod on the node that decisions depend on.
type Pod struct {
	UID, Namespace, Name string
	// Controller is the UID of its controller, Owner kind and name of that, such as
	// "ReplicaSet web-1". If both are empty, the pod is not replaced.
	Controller, Owner string
	Priority          int32
	// Grace is its termination grace period.
	Grace  time.Duration
	Policy Policy
	// Launcher means that a VM runs in it, Hotplug that it holds a volume of such a VM.
	// Ended means that its phase is Succeeded or Failed.
	Launcher, Hotplug, Ended bool
	// OfVM means that it belongs to a VM in any way. It is never deleted instead of being
	// evicted.
	OfVM bool
	// Delete means to delete it instead of evicting it. Plan.Next sets it.
	Delete bool
	// OverridesGrace means that its eviction sets a grace period. It is then evicted even
	// if it terminates already: its current grace period may be longer.
	OverridesGrace   bool
	Mirror, EmptyDir bool
	// DeletedAt is its deletion timestamp, zero if it has none.
	DeletedAt time.Time
	// DaemonSet is the state of the DaemonSet that controls it, empty if none does.
	// DaemonSetError is the error of reading it.
	DaemonSet      DaemonSetState
	DaemonSetError string
	Volumes        []Volume
}

// DaemonSetState is the result of reading a pod's DaemonSet.
type DaemonSetState string

// States of a DaemonSet.
const (
	DaemonSetThere   DaemonSetState = "there"
	DaemonSetGone    DaemonSetState = "gone"
	DaemonSetUnknown DaemonSetState = "unknown"
)

// Volume is a bound claim of a pod.
type Volume struct {
	// Claim is namespace/name of the claim, Name that of the PersistentVolume.
	Claim, Name string
	// Handle is its name in Node.status.volumesAttached and volumesInUse.
	Handle string
	// Ephemeral means that it is deleted with its pod.
	Ephemeral bool
}

// Options are flags, with the meaning that they have in kubectl drain.
type Options struct {
	Force, IgnoreDaemonSets, DeleteEmptyDir bool
	// SkipDeletedSeconds is the age of a deletion after which pods are skipped; 0 = none.
	SkipDeletedSeconds int64
	// GraceSeconds is the grace period of each pod, negative = the pod's own.
	GraceSeconds int64
	// PowerOff means that GraceSeconds may shorten the grace period of a running VM.
	PowerOff bool
}

// Choice is whether a pod is drained. If any pod has a Refusal the drain does not begin:
// no pod is evicted.
type Choice struct {
	Drain            bool
	Warning, Refusal string
}

// Refusals and warnings, worded as kubectl's.
const (
	daemonSetRefused = "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"
	daemonSetIgnored = "ignoring DaemonSet-managed Pods"
	emptyDirRefused  = "Pods with local storage (use --delete-emptydir-data to override)"
	unmanagedRefused = "Pods that declare no controller (use --force to override)"
	unmanagedDeleted = "deleting Pods that declare no controller"
	emptyDirDeleted  = "deleting Pods with local storage"
	skipped          = "skipping Pods with the label " + PolicyLabel + "=" + string(Skip)
)

// Choose decides whether a pod is drained: as kubectl drain does, but for the label
// PolicyLabel.
func Choose(p *Pod, o *Options, now time.Time) Choice {
	if p.deletedLongAgo(o, now) {
		return Choice{}
	}
	if p.Policy == Skip {
		return Choice{Warning: skipped}
	}
	if p.DaemonSet != "" && !p.Ended {
		return ofDaemonSet(p, o)
	}
	switch {
	case p.Mirror:
		return Choice{}
	case p.Ended || p.Policy == WaitCompleted:
		return Choice{Drain: true}
	case p.EmptyDir && !o.DeleteEmptyDir:
		return Choice{Refusal: emptyDirRefused}
	case p.Controller == "" && !o.Force:
		return Choice{Refusal: unmanagedRefused}
	case p.Controller == "":
		return Choice{Drain: true, Warning: unmanagedDeleted}
	case p.EmptyDir:
		return Choice{Drain: true, Warning: emptyDirDeleted}
	default:
		return Choice{Drain: true}
	}
}

func (p *Pod) deletedLongAgo(o *Options, now time.Time) bool {
	return o.SkipDeletedSeconds > 0 && !p.DeletedAt.IsZero() && int64(now.Sub(p.DeletedAt).Seconds()) > o.SkipDeletedSeconds
}

// ofDaemonSet decides for a pod of a DaemonSet, which would be replaced on this node.
// With --force a pod whose DaemonSet does not exist is drained.
func ofDaemonSet(p *Pod, o *Options) Choice {
	switch {
	case p.DaemonSet == DaemonSetGone && o.Force && p.Mirror:
		return Choice{}
	case p.DaemonSet == DaemonSetGone && o.Force && p.EmptyDir && !o.DeleteEmptyDir:
		return Choice{Refusal: emptyDirRefused}
	case p.DaemonSet == DaemonSetGone && o.Force:
		return Choice{Drain: true, Warning: p.DaemonSetError}
	case p.DaemonSet != DaemonSetThere:
		return Choice{Refusal: p.DaemonSetError}
	case !o.IgnoreDaemonSets:
		return Choice{Refusal: daemonSetRefused}
	default:
		return Choice{Warning: daemonSetIgnored}
	}
}

// Grace returns the grace period for the eviction of a pod, in seconds; nil is the
// pod's own. Without PowerOff the grace period of a running VM's pod, or of a pod that
// holds one of its disks, is not shortened.
func (o *Options) Grace(p *Pod) *int64 {
	short := time.Duration(o.GraceSeconds)*time.Second < p.Grace
	if o.GraceSeconds < 0 || (p.Launcher || p.Hotplug) && !p.Ended && short && !o.PowerOff {
		return nil
	}
	return new(o.GraceSeconds)
}
