// Package launcher has the rules of VMIs and launcher pods that are made without each other's
// UID: which pod becomes the launcher of a VMI (Refusal), and in which phase its VM is (Next).
// It does no I/O.
package launcher
