// Package evacuation has the rules of evictions and evacuations: the answer to an
// eviction of a VM's pod, the disruption budget that a VM needs, and the migrations to
// make and to start next.
//
// It does no I/O and reads no clock. Its input is KubeVirt's objects and facts about pods
// and nodes; its output is a decision with a reason for logs and metrics, and a message
// for users. All functions are pure.
package evacuation
