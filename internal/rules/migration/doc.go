// Package migration has the rules of a live migration for the cluster's controller, the
// source's agent and the target's agent.
//
// Each of the three has a function from the facts that it knows to its next step. The facts
// may be incomplete: cached objects may be old, the peer may be unreachable, the process may
// have just started. The rules are safe for every combination:
//
//   - The controller may cancel a migration only before it is Running. The source's agent
//     starts it by writing Running over the state that it has read, so that the API server
//     rejects one of the two.
//   - From then on the source's agent reports the state of its QEMU. It reports either Gone
//     or Running, and both are final.
//   - The target's agent resumes the arrived guest only after Gone, and removes it after
//     Running. Without a report the guest stays paused.
//   - The source's agent resumes a guest that the migration has paused only after the
//     target's report Absent, and ends it after Arrived.
//
// The package has no side effects and uses no server, clock or hypervisor.
package migration
