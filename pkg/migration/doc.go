// Package migration has the rules of a live migration: what the cluster's
// controller does next, what the agent of the source does, what the agent of
// the target does.
//
// Each of the three is told what it knows and returns one step. None knows all:
// the objects may be old, the other side may be out of reach, any of them may
// have been started a moment ago. The rules hold with whatever each may know:
//
//   - A migration may be given up by the controller alone until it is Running.
//     The source's agent begins by writing Running over the state it has read,
//     so that one of the two is refused by the API server.
//   - From then on the source's agent has the word on its own QEMU. It says Gone
//     once, or Running once, and neither is ever taken back.
//   - The target's agent resumes what has arrived on the word Gone alone, and
//     removes it on the word Running. Without a word it stays paused.
//   - The source's agent resumes a guest that is paused for the migration on the
//     target's word Absent alone, and ends it on the word Arrived.
//
// The package decides and does nothing: it knows no server, no clock and no
// hypervisor.
package migration
