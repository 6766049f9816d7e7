// Package eviction has the two webhooks. One answers evictions of VMs' pods and marks the
// VMs, the other gives launcher pods a sufficient grace period.
package eviction
