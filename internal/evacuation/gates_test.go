package evacuation

import (
	"strings"
	"testing"
)

// Beside KubeVirt's own gates, which vmgrace does not know, a name that is spelled like one of
// vmgrace's is a mistake. Otherwise the gate would stay off, and nobody would say why.
func TestAGateThatDoesNotExistIsNamedWithTheOneThatIsMeant(t *testing.T) {
	for name, meant := range map[string]string{
		"PreemptionEvictionLiveMigrations":         GatePreemption,
		"preemptionEvictionLiveMigration":          GatePreemption,
		"PremptionEvictionLiveMigraton":            GatePreemption,
		"PreemptionEviction-LiveMigration":         GatePreemption,
		" PreemptionEvictionLiveMigration":         GatePreemption,
		"NoExecuteEvictionLiveMigration":           GateNoExecute,
		"NoExecuteTaintLiveMigration":              "",
		"LiveMigration":                            "",
		"NodeRestriction":                          "",
		"DecentralizedLiveMigration":               "",
		"HotplugVolumes":                           "",
		"":                                         "",
		strings.Repeat("NoExecuteTaintEvict", 100): "",
	} {
		s := Settings{FeatureGates: []string{name, GateNoExecute, name, GatePreemption}}
		all := s.UnknownGates()
		if len(all) != 1 || all[0].Meant != meant || len(all[0].Name) > shortText+3 {
			t.Errorf("%.40q: %+v, want one that means %q", name, all, meant)
		}
	}
}
