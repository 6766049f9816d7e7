// Package shim is the shim's logic: it registers a VM, turns a signal into
// the trigger file, and stays until the VM process has ended.
//
// It never passes a signal on and never kills: only the agent decides. One goroutine owns
// everything. A wait (for a missing directory, or for a log that nobody reads) delays
// nothing else.
//
// Every launcher pod pays for the shim. So it polls its files, and watches its directory
// only if it asks the guest itself: a user has 128 inotify instances for all its
// processes.
package shim
