package watch

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
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
	if podUID == "" || len(podUID) > 64 || strings.ContainsFunc(podUID, strangeInUID) {
		return Directory{}, fmt.Errorf("%w, not %.64q", ErrPodUID, podUID)
	}
	base := filepath.Join(kubeletDir, "pods", podUID, "volumes", "kubernetes.io~empty-dir")
	return Directory{Base: base, Name: volume, Namespace: namespace, VM: vm}, nil
}

func strangeInUID(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
}
