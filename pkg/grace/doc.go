// Package grace is the core of vmgrace: it decides, and does nothing.
//
// A VM is described by a [Record], which survives the agent, and an
// [Observation], which does not. [Decide] takes both with the current time and
// says the one thing to do now, or when to look again. It reads no clock, does
// no I/O and allocates nothing, so every path through a shutdown can be tested
// in microseconds. The rules stand in one ordered table; their names are the
// words of log lines, status and metrics.
package grace
