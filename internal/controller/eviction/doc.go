// Package eviction has the two webhooks: the one that answers evictions of VMs'
// pods and marks the VMs, and the one that gives launcher pods a grace period
// that is long enough.
package eviction
