// Package inpod drives VMs whose process is in the launcher pod itself: QEMU is a child
// of launcher-shim, and the node's libvirt does not know it.
//
// The launcher directory describes such a VM. vm.json says that the launcher asks the
// guest itself. The holder of its lock is the shim. The pid in it is the VM process as
// the container sees it. A tenant states that, so the driver accepts only a process below
// that shim, in its PID namespace, and in the cgroup of the launcher pod that Kubernetes
// names. A pidfd holds the process from then on.
//
// A request to the guest is a number in status.json. The shim asks, in its own sandbox,
// and answers in vm.json. So no process of the node talks to a socket that a tenant owns.
//
// A [Mover] moves such a VM by requests of the same kind. What the launcher says of it is a
// hint: only the end of the process, by its pidfd, tells that the guest does not run here.
package inpod
