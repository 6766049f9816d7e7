package kube

import "regexp"

// What comes from objects becomes part of domain names and paths.
var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	uidForm   = regexp.MustCompile(`^[a-zA-Z0-9-]{1,64}$`)
)

// maxLabel is how long a label's value may be, and so a node's name here.
const maxLabel = 63

// vmKey names a VMI.
type vmKey struct{ namespace, name string }

// valid: a namespace is a DNS label and a name a DNS subdomain (RFC 1123), for
// Kubernetes and so for everybody here.
func (k vmKey) valid() bool {
	return label.MatchString(k.namespace) && subdomain.MatchString(k.name)
}

func validUID(uid string) bool { return uidForm.MatchString(uid) }
