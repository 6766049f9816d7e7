// Package shim is the shim's logic: it registers a VM, turns a signal into
// the trigger file, and stays until the VM process has ended.
//
// It never passes a signal on and never kills: the agent alone decides. One
// goroutine owns everything, and whatever can wait (a directory that is not
// there yet, a log that nobody reads) makes nothing else wait.
//
// Every launcher pod pays for it, so it does without log/slog, os/exec,
// encoding/json and pflag: each of them costs 0.2 to 0.4 MB of program, and as
// much memory. Other values of GOMAXPROCS or GOGC gained nothing.
package shim
