// Package signals is the trigger-file protocol. By files in its launcher directory, a
// launcher that got a signal tells the agent on the node.
//
// The shim registers its VM in vm.json and holds a POSIX write lock on it while it lives.
// It turns a signal into a file (shutdown), and the agent answers in status.json. Files
// need no connection, no port and no right. They work while the other side is down, and a
// person can use them with touch.
//
// This package is the protocol and the shim's end of it, [Sender]. The agent's end is the
// package watch below this one, so that the shim does not link fsnotify. A tenant wrote
// whatever is read here, so nothing of it is trusted.
package signals
