// Package drain implements kubectl vmgrace drain, why and cancel: it carries out the decisions of internal/rules/drain.
// The state of the node comes from informers. Requests go to the API server directly,
// each with a timeout. One goroutine, the loop, owns the plan and the output; other
// goroutines send it their results over a channel.
package drain
