package watch

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// volume is the name of the launcher pod's emptyDir volume.
const volume = "vmgrace"

// ErrPodUID says that a pod's UID cannot be the name of a directory.
var ErrPodUID = errors.New("a pod's uid is 1 to 64 of letters, digits and '-' only")

// EmptyDir is the launcher directory of a launcher pod: where kubelet puts its
// emptyDir volumes (kubernetes.io, "kubelet files"). All of the path is root's;
// the pod's UID comes from the pod object, of a VM namespace/vm. Kubelet may not
// have made any of it yet. The error wraps ErrPodUID.
func EmptyDir(kubeletDir, podUID, namespace, vm string) (Directory, error) {
	if !grace.IsUID(podUID) {
		return Directory{}, fmt.Errorf("%w, not %.64q", ErrPodUID, podUID)
	}
	base := filepath.Join(kubeletDir, "pods", podUID, "volumes", "kubernetes.io~empty-dir")
	return Directory{Base: base, Name: volume, Namespace: namespace, VM: vm}, nil
}
