package watch

import (
	"path/filepath"

	"github.com/vmgrace/vmgrace/api/launcherpod"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// EmptyDir returns the launcher directory of a launcher pod: where kubelet puts its
// emptyDir volumes (kubernetes.io, "kubelet files"). Root owns all of the path. The pod's
// UID comes from the pod object, of a VM namespace/vm. Kubelet may not have made the path
// yet. ok is false if the UID cannot be a directory's name.
func EmptyDir(kubeletDir, podUID, namespace, vm string) (d Directory, ok bool) {
	if !grace.IsUID(podUID) {
		return Directory{}, false
	}
	base := filepath.Join(kubeletDir, "pods", podUID, "volumes", "kubernetes.io~empty-dir")
	return Directory{Base: base, Name: launcherpod.DirectoryVolume, Namespace: namespace, VM: vm, Pod: podUID}, true
}
