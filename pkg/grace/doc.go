// Package grace is the core of vmgrace: it decides, and does nothing.
//
// A [VM] holds what is known of one virtual machine: its [Record], which
// survives the agent, and what was observed, which does not. It is told facts
// (what was seen of launcher directory, domain, VMI and pod; what was started,
// and what came of it), and [VM.Next] says the one thing to do now, or when to
// ask again. It reads no clock and does no I/O, and deciding allocates nothing,
// so every path through a shutdown can be tested in microseconds. The rules
// stand in two ordered tables; their names are the words of log lines. The
// stories in testdata show what they come to.
package grace
