// Package agent is the loop that keeps every VM of the node to its grace
// period: it passes observations to the core, and carries out its decisions.
//
// Each VM has one goroutine, the keeper, that owns its grace.VM and the handles
// on its processes. Hints (a file appeared, libvirt said something, a process
// ended) only make the core ask for a look. grace.VM says the one thing to do
// next; whatever can hang is done by a worker beside the keeper, at most one of
// each kind per VM, so that neither a stuck disk nor a stuck libvirt delays a
// deadline, and no VM waits for another.
package agent
