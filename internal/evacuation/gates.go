package evacuation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/internal/oneline"
)

// Feature gates, in KubeVirt's spec.configuration.developerConfiguration.
const (
	GatePreemption = "PreemptionEvictionLiveMigration"
	GateNoExecute  = "NoExecuteTaintEvictionLiveMigration"
)

// Gate reports whether a feature gate is on.
func (s *Settings) Gate(name string) bool { return slices.Contains(s.FeatureGates, name) }

// UnknownGate is a feature gate that vmgrace does not have: it has no effect here.
type UnknownGate struct {
	// Name is cut to a length that can be printed.
	Name string
	// Meant is the gate of vmgrace that is spelled like it, or "". Where KubeVirt runs, one that
	// is spelled like none is KubeVirt's.
	Meant string
}

// Message returns one line about the gate.
func (g UnknownGate) Message() string {
	text := fmt.Sprintf("spec.configuration.developerConfiguration.featureGates: %q has no effect: ", g.Name)
	if g.Meant != "" {
		return text + "is " + g.Meant + " meant?"
	}
	return text + "there are " + GatePreemption + " and " + GateNoExecute
}

// UnknownGates returns the feature gates that vmgrace does not have, each once.
func (s *Settings) UnknownGates() (all []UnknownGate) {
	for _, name := range s.FeatureGates {
		g := UnknownGate{Name: oneline.Cut(name, shortText)}
		if name == GatePreemption || name == GateNoExecute || slices.ContainsFunc(all, func(o UnknownGate) bool { return o.Name == g.Name }) {
			continue
		}
		for _, ours := range []string{GatePreemption, GateNoExecute} {
			if alike(g.Name, ours) {
				g.Meant = ours
			}
		}
		all = append(all, g)
	}
	return all
}

// alike reports whether a name may be a misspelling of ours: at most a fifth of its letters would
// have to be changed, whatever their case.
func alike(name, ours string) bool {
	return distance(strings.ToLower(strings.TrimSpace(name)), strings.ToLower(ours)) <= len(ours)/5
}

// distance returns how many letters have to be inserted, removed or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0] // of the row above, at the column before
		row[0] = i + 1
		for j := range len(b) {
			replaced := left
			if a[i] != b[j] {
				replaced++
			}
			left = row[j+1]
			row[j+1] = min(replaced, row[j]+1, left+1)
		}
	}
	return row[len(b)]
}
