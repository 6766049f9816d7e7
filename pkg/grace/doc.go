// Package grace is the core of vmgrace. It decides what to do, and does none of it.
//
// A [VM] holds what is known of one virtual machine: its [Record], which survives the
// agent, and its observations, which do not. Callers tell it facts (about launcher
// directory, domain, VMI and pod, and about what was started and how it ended). [VM.Next]
// returns the one thing to do now, or when to ask again. It reads no clock, does no I/O
// and allocates nothing. So tests cover every path through a shutdown in microseconds.
// Two ordered tables hold the rules, and log lines use their names. The stories in
// testdata show the results.
package grace
