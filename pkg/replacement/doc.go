// Package replacement has the rules by which VMs leave tainted nodes: which
// taints count, since when, what is said of each VM, and which VM is replaced
// next.
//
// It decides and does nothing: it knows no server, no clock and no cache. What
// it must remember goes out and comes in again as a State.
package replacement
