// Package patch has what JSON patches are made of (RFC 6902).
package patch

// Operation is one step of a JSON patch. A test for a nil value also passes
// where there is no such field.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// OrNull is the value of a test for a field that is left out where it is empty.
func OrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
