// Package drain decides how a node is drained. It does no I/O. Choose selects the pods
// to evict, as kubectl drain does. Classify interprets the API server's answer to an
// eviction. A Plan returns the pods to evict now, and tracks what the others wait for.
// The caller passes in what it observes with the time, and calls again after each
// change.
//
// Pods without attached volumes are evicted concurrently. Pods with attached volumes
// form a queue by priority. Each is evicted and ends. Its volumes are detached from
// this node and attached to another one. Then the next pod follows. A pod whose
// eviction is refused for now, such as one whose VM is being migrated, leaves the
// queue: the others do not wait for it.
package drain
