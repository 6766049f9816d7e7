// Package besidekubevirt tests deploy/beside-kubevirt in a Kubernetes cluster of two nodes,
// beside the stand-in for KubeVirt of test/kubevirt. The guests and their migrations are
// QEMU's own. KubeVirt's objects have every field of its release, from
// api/kubevirt/testdata.
package besidekubevirt
