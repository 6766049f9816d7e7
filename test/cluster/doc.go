// Package cluster gives a test a real Kubernetes of its own on this machine: an API server
// alone, or two nodes with a control plane. No part of it is a stub.
//
//   - [StartAPI] starts etcd and kube-apiserver on free ports of 127.0.0.1. A test can
//     stop, kill and freeze the server and start it again on the same data. It needs no
//     root.
//   - [Start] starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler in a
//     network namespace, and two nodes. Each node is a machine as far as the kernel allows:
//     it has a mount, PID and network namespace and a host name of its own, with
//     containerd, kubelet and a libvirtd whose guests outlive pods, kubelet and containerd.
//     Where KUBECONFIG is set, Start uses that cluster instead.
//
// hack/k8s/build.sh (make k8s) makes the programs, hack/csi/build.sh (make csi) those for
// volumes, hack/previous.sh (make previous) the last release, and make helm Helm. It is
// Kubernetes 1.37; K8S=1.34 takes the older one. When the process that started a cluster
// ends, for whatever reason, the kernel kills everything in the cluster. A killed process
// leaves files and cgroups behind; the next process that starts a cluster removes them.
//
// Like test/node, the package does not import testing.
package cluster

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// T is the part of *testing.T that this package uses. Fatalf must not return.
type T = node.T

// waitTimeout bounds every wait on a busy machine for what has no promised time.
const waitTimeout = 90 * time.Second

// assets returns the directory where the targets of the Makefile put what the tests need.
func assets() (string, error) {
	if dir := os.Getenv("VMGRACE_CLUSTER"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("where the cluster's programs are: %w", err)
	}
	return filepath.Join(home, ".cache", "vmgrace-cluster"), nil
}

// kubernetes returns the directory of assets with the programs and images of
// hack/k8s/build.sh.
func kubernetes() string { return "k8s-" + cmp.Or(os.Getenv("K8S"), "1.37") }

// program returns the path of a program of hack/k8s/build.sh.
func program(name string) (string, error) { return made("k8s", kubernetes()+"/bin", name) }

// CSI returns the path of a program of hack/csi/build.sh: csi-attacher or mock-csi.
func CSI(name string) (string, error) { return made("csi", "csi", name) }

// Image returns the path of an image of hack/images.sh.
func Image(name string) (string, error) { return made("images", "product", name+".tar") }

// Helm returns the path of Helm's own program.
func Helm() (string, error) { return made("helm", "helm", "helm") }

// Previous returns the path of a file or directory of hack/previous.sh, such as deploy.
func Previous(name string) (string, error) { return made("previous", "previous", name) }

// made returns the path of what a target of the Makefile has made.
func made(target, dir, name string) (string, error) {
	root, err := assets()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is missing, run make %s: %w", name, target, err)
	}
	return path, nil
}
