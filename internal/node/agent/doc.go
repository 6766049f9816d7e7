// Package agent is the loop that gives every VM of the node its grace period. It passes
// observations to the core, and carries out its decisions.
//
// Each VM has one goroutine, the keeper, that owns its grace.VM and the handles on its
// processes. Hints (a new file, an event of libvirt, the end of a process) only make the
// core ask for a look. grace.VM returns the next action. A worker beside the keeper makes
// every call that can hang, at most one of each kind per VM. So neither a stuck disk nor
// a stuck libvirt delays a deadline, and no VM waits for another.
package agent
