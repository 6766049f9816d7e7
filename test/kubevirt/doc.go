// Package kubevirt stands in for KubeVirt in the tests of what vmgrace does beside it:
// virt-launcher, virt-handler, virt-controller, and the webhooks of virt-api. It does what
// docs/kubevirt.md says of KubeVirt, and nothing else. Its guests and their migrations are
// QEMU's own, in pods and between them.
//
// The program standin runs one of the roles in a pod of standin.yaml, with the rights of
// that role's ServiceAccount. Each role looks at everything again and again: no cache of it
// can be outdated.
package kubevirt
