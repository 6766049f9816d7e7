// Package agent is the loop that keeps every VM of the node to its grace
// period: gather, decide, persist, act.
//
// Each VM has one goroutine, the keeper, that owns everything known about it.
// Hints (a file appeared, libvirt said something, a process ended) only make
// the keeper look for itself. What it finds goes to grace.Decide, which says
// the one thing to do; whatever can hang is done by a worker beside the
// keeper, at most one of each kind per VM, so that neither a stuck disk nor a
// stuck libvirt delays a deadline, and no VM waits for another.
package agent
