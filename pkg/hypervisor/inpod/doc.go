// Package inpod drives VMs whose process is in the launcher pod itself: QEMU
// is a child of launcher-shim, and no libvirt of the node knows of it.
//
// What such a VM is comes from its launcher directory: vm.json says that its
// launcher asks the guest itself, who holds its lock is the shim, and the pid in
// it is the VM process as the container sees it. That is a tenant's word. It is
// believed only of a process below that shim, in its PID namespace, and in the
// cgroup of the launcher pod that Kubernetes names; from first sight on the
// process is held by a pidfd.
//
// A request to the guest is a number in status.json. The shim asks, in its own
// sandbox, and answers in vm.json: nobody on the node talks to a socket that a
// tenant owns.
package inpod
