// Package launcherpod has that on which the cluster's side and the node's side agree about a launcher
// pod: names in its manifest, and whose it is.
package launcherpod

// DirectoryVolume is the name of the emptyDir volume that is the pod's launcher directory.
const DirectoryVolume = "vmgrace"

// IncomingVariable is an environment variable of a migration's target pod: QEMU has to wait for
// the guest. Its value is the migration's UID.
const IncomingVariable = "VMGRACE_INCOMING"

// EndForced is the termination message of a launcher whose guest was destroyed at its deadline. Its
// process may have ended with 0.
const EndForced = "vmgrace: destroyed at its deadline"
