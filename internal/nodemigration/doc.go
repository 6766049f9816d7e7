// Package nodemigration is a node's part in a live migration.
//
// One migration has two sides. The source's agent has its libvirt send the guest
// through a socket of the agent's, from there over TLS to the target's agent, and
// through package tunnel to libvirt there. The guest arrives paused, and the
// target's agent lets it run only when the source's agent says that its QEMU is
// gone, which that knows by a pidfd. So at most one runs, whatever dies in
// between: who does not know waits, and says so.
//
// Each side of each migration has one goroutine, which looks, asks package
// migration what to do, and does one thing. Nothing is remembered that cannot be
// seen again: an agent that restarts decides from the migration's object, libvirt
// and the process.
package nodemigration
