// Package drain decides how a node is emptied. It does nothing itself: Choose
// says which pods have to go, as kubectl drain would; Classify says what an
// answer of the API server means; a Plan says which pods to evict now and what
// the others wait for. Whoever carries it out hands in what is seen and at what
// time, and asks again when something has changed.
//
// Pods without volumes go side by side, as do those of which none is attached.
// Pods with volumes go one after the other, by priority: evicted, gone, volumes detached from this node, attached
// elsewhere; then comes the next. A pod whose eviction is refused for now, as
// that of a VM that is being moved, leaves this line: the others do not wait
// for it.
package drain
