// Package plugin implements kubectl vmgrace. facts.go and table.go are pure: what is known of a
// VM, and how it is printed. The commands read the API server, ask, and write.
package plugin
