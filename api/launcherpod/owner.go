package launcherpod

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Owner has the properties of a VMI by which a launcher pod is its, or is not.
type Owner struct {
	UID string
	// Launcher is the UID of the launcher pod that its status names, "" if it names none.
	Launcher  string
	Ended     bool
	DeletedAt time.Time // zero unless it is being deleted
}

// OwnerOf returns the properties of a VMI.
func OwnerOf(uid string, deleted *metav1.Time, s *kubevirt.VirtualMachineInstanceStatus) Owner {
	o := Owner{UID: uid, Ended: s.Phase.Final()}
	if s.Launcher != nil {
		o.Launcher = s.Launcher.PodUID
	}
	if deleted != nil {
		o.DeletedAt = deleted.UTC()
	}
	return o
}

// Pod has the properties of a launcher pod that names a VMI. VMI is the UID of its label created-by, ""
// without one.
type Pod struct {
	UID, VMI string
	Created  time.Time
}

// Owns reports whether a pod that names the VMI is its: by UID, or, where the pod has none, by name
// while the VMI may get a launcher. The pods of a VMI that has ended, has had its launcher, or was
// deleted before them, are VMs by themselves.
func (o Owner) Owns(p Pod) bool {
	if p.VMI != "" {
		return p.VMI == o.UID
	}
	return !o.Ended && (o.Launcher == "" || o.Launcher == p.UID) && (o.DeletedAt.IsZero() || !p.Created.After(o.DeletedAt))
}
