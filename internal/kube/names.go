package kube

import "github.com/vmgrace/vmgrace/pkg/grace"

// maxLabel is how long a label's value may be, and so a node's name here.
const maxLabel = 63

// vmKey names a VMI.
type vmKey struct{ namespace, name string }

// valid: it becomes part of domain names and paths.
func (k vmKey) valid() bool {
	_, _, ok := grace.SplitDomainName(grace.DomainName(k.namespace, k.name))
	return ok
}
