// Package shim is the shim's logic: it registers a VM, turns a signal into
// the trigger file, and stays until the VM process has ended.
//
// It never passes a signal on and never kills: only the agent decides. One goroutine owns
// everything. A wait (for a missing directory, or for a log that nobody reads) delays
// nothing else.
//
// Every launcher pod pays for the shim. So it sleeps until a file that it waits for may
// have changed. Without an inotify instance, of which a user has 128 for all its processes,
// it looks each second if somebody waits for it.
package shim
