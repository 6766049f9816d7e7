// Package migrate is the node agent's part in a live migration.
//
// One migration has two sides. The source's libvirt sends the guest to a socket of the
// source's agent, which relays it over TLS to the target's agent; package tunnel checks it
// there and passes it to the target's libvirt. The guest arrives paused. The target's agent
// resumes it only after the source's agent has reported that its QEMU has ended, which it
// knows by a pidfd. So at most one copy runs, whatever fails in between: a side that lacks
// the peer's report leaves the guest paused and sends an Event.
//
// A guest in its launcher pod is sent and received by its QEMU, through sockets of the agents' in
// the launcher directories. The agents relay that stream and check nothing in it.
//
// Each side of a migration has one goroutine. It observes, asks package migration for the
// next action, and does it. All state can be observed again: an agent that restarts decides
// from the migration's object, libvirt and the process.
package migrate
