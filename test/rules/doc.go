// Package rules holds the rules of the house that no linter knows, as tests:
// which package may import what, how long a file may be, what must be
// documented. Arrows point inwards, to a core that knows nobody.
package rules
