package kubevirt

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/launcherpod"
)

// OwnerOf returns the properties of a VMI by which a launcher pod is its. It does not stand in package
// launcherpod: the shim links that.
func OwnerOf(uid string, deleted *metav1.Time, s *VirtualMachineInstanceStatus) launcherpod.Owner {
	o := launcherpod.Owner{UID: uid, Ended: s.Phase.Final()}
	if s.Launcher != nil {
		o.Launcher = s.Launcher.PodUID
	}
	if deleted != nil {
		o.DeletedAt = deleted.UTC()
	}
	return o
}
