// Package node is the node-agent program: flags, wiring, and the status
// command. It decides nothing.
package node
