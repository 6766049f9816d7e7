// Package hostile attacks the agent as a tenant can, through the tenant's own launcher
// directory, and takes inotify away from the agent. No attack may affect another VM,
// another trigger or a file outside.
package hostile
