// Package watch is the agent's end of the trigger-file protocol. It finds launcher
// directories, reads them, and says when to look again.
//
// A [Watcher] only says that a directory may have changed; [Directory.Look] reads it. So
// a lost, doubled or forged event costs a look and decides nothing. A tenant wrote
// everything below a launcher directory: no link is followed, nothing blocks, and little
// is read.
package watch
