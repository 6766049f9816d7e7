// Package cluster gives a test a Kubernetes of its own on this machine, nothing
// of it stubbed: an API server alone, or two nodes with a control plane.
//
//   - [StartAPI]: etcd and kube-apiserver on free ports of 127.0.0.1. It can be
//     stopped, killed, frozen and started again on the same data. Needs no root.
//   - [Start]: etcd, kube-apiserver, kube-controller-manager and kube-scheduler
//     in a network namespace, and two nodes, each a machine as far as the kernel
//     allows: mount, PID, network and host name of its own, with containerd,
//     kubelet and a libvirtd whose guests outlive pods, kubelet and containerd.
//     With KUBECONFIG set it is that cluster instead.
//
// The programs are made by hack/k8s/build.sh (make k8s), those for volumes by
// hack/csi/build.sh (make csi). When the process that
// started a cluster ends, however it ends, everything in it is killed by the
// kernel; files and cgroups of a process that was killed are cleared by the next.
//
// Like test/node, the package does not import testing.
package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// T is the part of *testing.T that this package uses. Fatalf must not return.
type T = node.T

// waitTimeout is how long anything without a promise may take on a busy machine.
const waitTimeout = 90 * time.Second

// assets is where hack/k8s/build.sh has put the programs and images.
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

// program is the path of one of the programs of hack/k8s/build.sh.
func program(name string) (string, error) { return made("k8s", "bin", name) }

// CSI is the path of one of the programs of hack/csi/build.sh: csi-attacher, mock-csi.
func CSI(name string) (string, error) { return made("csi", "csi", name) }

// Image is the path of one of the images of hack/images.sh.
func Image(name string) (string, error) { return made("images", "product", name+".tar") }

// made is the path of what a target of the Makefile has made.
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
