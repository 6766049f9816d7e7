// Package signals is the trigger-file protocol: how a launcher that got a
// signal tells the agent on the node, through files in its launcher directory.
//
// The shim registers its VM (vm.json, under a POSIX write lock that it holds
// while it lives) and turns a signal into a file (shutdown); the agent answers
// (status.json). Files need no connection, no port and no right: they work
// while the other side is down, and a person can use them with touch.
//
// This package is the protocol and the shim's end of it, [Sender]. The agent's
// end is the package watch below this one, so that the shim does not link
// fsnotify. Nothing that is read here is trusted: it was written by a tenant.
package signals
