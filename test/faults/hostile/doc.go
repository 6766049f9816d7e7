// Package hostile attacks the agent as a tenant can, through its own launcher
// directory, and takes inotify away from it. Whatever happens, nobody but the
// attacker may notice: no other VM, no other trigger, no file outside.
package hostile
