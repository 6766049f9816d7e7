package evacuation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/oneline"
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

// fields are the settings of a KubeVirt object that are read.
var fields = strings.Fields(`spec.configuration spec.configuration.evictionStrategy spec.configuration.developerConfiguration
	spec.configuration.developerConfiguration.featureGates spec.configuration.migrations spec.configuration.migrations.parallelMigrationsPerCluster
	spec.configuration.migrations.parallelOutboundMigrationsPerNode spec.configuration.migrations.bandwidthPerMigration
	spec.configuration.migrations.completionTimeoutPerGiB spec.configuration.migrations.progressTimeout
	spec.configuration.migrations.allowAutoConverge spec.configuration.migrations.nodeDrainTaintKey`)

// UnknownField is a setting of a KubeVirt object that has no effect here. Where KubeVirt runs, a
// foreign one is KubeVirt's: it is spelled like none of vmgrace's.
type UnknownField struct {
	Message string
	Foreign bool
}

// UnknownFields returns the settings that vmgrace does not have, at most 32. What is beside
// spec.configuration installs KubeVirt, and is none unless it is spelled like one.
func UnknownFields(kv *kubevirt.KubeVirt) (all []UnknownField) {
	if kv == nil {
		return nil
	}
	c := kv.Spec.Configuration
	gates, limits := cmp.Or(c.DeveloperConfiguration, &kubevirt.DeveloperConfiguration{}), cmp.Or(c.MigrationConfiguration, &kubevirt.MigrationConfiguration{})
	for _, at := range [][2]string{
		{"spec.", kv.Spec.Unknown}, {"spec.configuration.", c.Unknown},
		{"spec.configuration.developerConfiguration.", gates.Unknown}, {"spec.configuration.migrations.", limits.Unknown},
	} {
		for name := range strings.FieldsSeq(at[1]) {
			name = oneline.Cut(name, shortText)
			f := UnknownField{at[0] + name + " has no effect: vmgrace has no such setting", true}
			for _, ours := range fields {
				if alike(name, ours[strings.LastIndex(ours, ".")+1:]) {
					f = UnknownField{at[0] + name + " has no effect: is " + ours + " meant?", false}
				}
			}
			if len(all) < 32 && (at[0] != "spec." || !f.Foreign) {
				all = append(all, f)
			}
		}
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
