// Package evacuation has the rules of evictions and evacuations: what an
// eviction of a VM's pod is answered, which disruption budget a VM needs, and
// which migrations come next.
//
// It decides and does nothing: it knows no server, no clock and no cache. What
// it is told are KubeVirt's objects and Kubernetes' words; what it returns is a
// decision with a reason for metrics and a message for people.
package evacuation
