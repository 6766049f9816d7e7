// Package e2e tests the shipped images and manifests in a Kubernetes cluster of two nodes
// with real guests. The tests observe it as users do: by kubectl, virsh, QEMU's own log and
// node-agent status. make e2e runs them.
//
// test/cluster starts the cluster, unless KUBECONFIG names another one. A test that such a
// cluster cannot run fails and says NOT RUN.
package e2e
