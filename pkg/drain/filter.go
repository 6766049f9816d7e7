package drain

import "time"

// Policy is what a pod says about drains in its label PolicyLabel.
type Policy string

// PolicyLabel on a pod, and its values. Any other value says nothing.
const (
	PolicyLabel = "vmgrace.io/drain"

	// Skip: the pod stays.
	Skip Policy = "Skip"
	// WaitCompleted: the pod is not evicted; the drain waits until it has ended.
	WaitCompleted Policy = "WaitCompleted"
)

// Pod is what counts of a pod on the node.
type Pod struct {
	UID, Namespace, Name string
	// Controller is the UID of its controller, Owner how people name that:
	// "ReplicaSet web-1". Both empty: nobody makes it anew.
	Controller, Owner string
	Priority          int32
	// Grace is its termination grace period.
	Grace  time.Duration
	Policy Policy
	// Launcher: a VM runs in it. Hotplug: it holds a volume of such a VM. Ended:
	// Succeeded or Failed.
	Launcher, Hotplug, Ended bool
	// Hurried: its request names a grace period, and is made also where it
	// terminates already: it may have a longer one.
	Hurried          bool
	Mirror, EmptyDir bool
	// DeletedAt is its deletion timestamp, zero if it has none.
	DeletedAt time.Time
	// DaemonSet is the state of the DaemonSet that controls it, empty if none does.
	// DaemonSetError is why that is not DaemonSetThere.
	DaemonSet      DaemonSetState
	DaemonSetError string
	Volumes        []Volume
}

// DaemonSetState is what the API server says of a pod's DaemonSet.
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
	// Handle is its name in a node's status.
	Handle string
	// Ephemeral: it goes with its pod.
	Ephemeral bool
}

// Options are what the operator allows. They mean what kubectl drain's mean.
type Options struct {
	Force, IgnoreDaemonSets, DeleteEmptyDir bool
	// SkipDeletedSeconds: pods that were deleted longer ago are left out; 0 = none.
	SkipDeletedSeconds int64
	// GraceSeconds for each pod, negative = the pod's own.
	GraceSeconds int64
	// PowerOff: GraceSeconds may cut the grace period of a VM that runs.
	PowerOff bool
}

// Choice is whether a pod has to go. Refusal is why the drain must not begin:
// then nothing is evicted.
type Choice struct {
	Drain            bool
	Warning, Refusal string
}

// Refusals and warnings, in kubectl's words.
const (
	daemonSetRefused = "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"
	daemonSetIgnored = "ignoring DaemonSet-managed Pods"
	emptyDirRefused  = "Pods with local storage (use --delete-emptydir-data to override)"
	unmanagedRefused = "Pods that declare no controller (use --force to override)"
	unmanagedDeleted = "deleting Pods that declare no controller"
	emptyDirDeleted  = "deleting Pods with local storage"
	skipped          = "skipping Pods with the label " + PolicyLabel + "=" + string(Skip)
)

// Choose says what a drain does with a pod. Without the label PolicyLabel it is
// what kubectl drain does.
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

// ofDaemonSet: its controller would make it anew on this node. An orphan goes
// with --force.
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

// Grace is what the request for a pod says: nil is the pod's own grace period.
// That of a VM that runs is not cut unless PowerOff says so, nor that of a pod
// which holds one of its disks.
func (o *Options) Grace(p *Pod) *int64 {
	short := time.Duration(o.GraceSeconds)*time.Second < p.Grace
	if o.GraceSeconds < 0 || (p.Launcher || p.Hotplug) && !p.Ended && short && !o.PowerOff {
		return nil
	}
	return new(o.GraceSeconds)
}
