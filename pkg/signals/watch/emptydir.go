package watch

import (
	"path/filepath"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// volume is the name of the launcher pod's emptyDir volume.
const volume = "vmgrace"

// EmptyDir is the launcher directory of a launcher pod: where kubelet puts its
// emptyDir volumes (kubernetes.io, "kubelet files"). All of the path is root's;
// the pod's UID comes from the pod object, of a VM namespace/vm. Kubelet may not
// have made any of it yet. It is not ok where the UID cannot be the name of a
// directory.
func EmptyDir(kubeletDir, podUID, namespace, vm string) (d Directory, ok bool) {
	if !grace.IsUID(podUID) {
		return Directory{}, false
	}
	base := filepath.Join(kubeletDir, "pods", podUID, "volumes", "kubernetes.io~empty-dir")
	return Directory{Base: base, Name: volume, Namespace: namespace, VM: vm, Pod: podUID}, true
}
