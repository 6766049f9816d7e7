// Package e2e runs what is shipped, the two images and the manifests, on a
// Kubernetes of two real nodes with real guests. It looks at it as users do: by
// kubectl, virsh, QEMU's own log and node-agent status. make e2e runs it.
//
// The cluster is one of its own (test/cluster), or the one that KUBECONFIG names:
// a test that such a cluster cannot run fails and says NOT RUN.
package e2e
