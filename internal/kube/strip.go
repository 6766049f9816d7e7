package kube

import (
	"strings"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// instance is a VMI and its name.
type instance struct {
	name vmKey
	vmi  VMI
}

// launcher is a launcher pod and the name of its VMI.
type launcher struct {
	of  vmKey
	pod Pod
}

// The selectors have already picked what is on this node; a proxy may have
// ignored them. What is nothing for us is the zero value.

func stripVMI(node string, now func() grace.Mono, o *vmi, was VMI) instance {
	name := vmKey{o.Namespace, o.Name}
	if !name.valid() || !grace.IsUID(string(o.UID)) || o.Labels[nodeLabel] != node {
		return instance{}
	}
	is := VMI{
		UID: string(o.UID), Created: o.CreationTimestamp.UTC(), Grace: o.Spec.grace,
		Deleting: o.DeletionTimestamp != nil, DeletingAt: grace.Never,
	}
	switch {
	case is.Deleting && was.Deleting && was.UID == is.UID:
		is.DeletingAt = was.DeletingAt
	case is.Deleting:
		is.DeletingAt = now()
	}
	return instance{name, is}
}

// stripPod: the labels and annotations are a tenant's text.
func stripPod(node string, now func() grace.Mono, o *pod, was Pod) launcher {
	of := vmKey{o.Namespace, o.Annotations[domainAnnotation]}
	if !of.valid() || !grace.IsUID(string(o.UID)) || o.Spec.NodeName != node || o.Labels[launcherLabel] != launcherValue {
		return launcher{}
	}
	of.name = strings.Clone(of.name)
	is := Pod{
		UID: string(o.UID), Created: o.CreationTimestamp.UTC(),
		Done: o.done(), Deleting: o.DeletionTimestamp != nil,
		DeletingAt: grace.Never, KillAt: grace.Never,
		DeletionGrace: seconds(o.DeletionGracePeriodSeconds),
		GracePeriod:   seconds(o.Spec.TerminationGracePeriodSeconds),
	}
	if uid := o.Labels[createdByLabel]; grace.IsUID(uid) {
		is.VMI = uid
	}
	if !is.Deleting {
		return launcher{of, is}
	}
	is.DeletingAt = now()
	if o.DeletionGracePeriodSeconds != nil {
		is.KillAt = is.DeletingAt.Add(is.DeletionGrace)
	}
	if was.Deleting && was.UID == is.UID {
		is.DeletingAt, is.KillAt = was.DeletingAt, min(was.KillAt, is.KillAt)
	}
	return launcher{of, is}
}

// seconds reads a number of seconds that may be absent, or nonsense.
func seconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(min(max(*n, 0), int64(grace.MaxPeriod/time.Second))) * time.Second
}
