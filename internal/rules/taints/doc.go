// Package taints has the rules by which VMs are moved off tainted nodes: which taints
// count, since when, the conditions of each VM, and which VM is replaced next.
//
// It does no I/O and reads no clock. Next returns its state, which the caller persists and
// passes to the next call.
package taints
