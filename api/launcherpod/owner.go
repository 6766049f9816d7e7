package launcherpod

import "time"

// Owner has the properties of a VMI by which a launcher pod is its, or is not.
type Owner struct {
	UID string
	// Launcher is the UID of the launcher pod that its status names, "" if it names none.
	Launcher  string
	Ended     bool
	DeletedAt time.Time // zero unless it is being deleted
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
