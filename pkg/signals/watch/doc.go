// Package watch is the agent's end of the trigger-file protocol: which
// launcher directories there are, what they say, and when to look again.
//
// A [Watcher] only says that a directory may have changed; [Directory.Look]
// reads it. So an event that is lost, doubled or forged costs a look and decides
// nothing. Everything below a launcher directory was written by a tenant: nothing
// is followed, nothing blocks, and little is read.
package watch
