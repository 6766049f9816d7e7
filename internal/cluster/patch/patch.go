// Package patch builds and sends patches: JSON patches (RFC 6902) of VMIs' status, and
// merge patches of metadata.
package patch

// Operation is one step of a JSON patch. A test for nil also passes if the field is
// missing.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// OrNull returns the value of a test for a string field with omitempty.
func OrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
