package evacuation

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
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

// Given a KubeVirt object with settings that vmgrace does not have. Then each is named, one that is
// misspelt, or stands elsewhere, with the one that is meant.
func TestASettingThatDoesNotExistIsNamed(t *testing.T) {
	kv := &kubevirt.KubeVirt{}
	if err := json.Unmarshal([]byte(`{"spec":{"imagePullPolicy":"Always","configuratio":{},"migrations":{},"configuration":{
		"evictionStrategy":"LiveMigrate","evictionstrategy":"None","cpuModel":"host",
		"developerConfiguration":{"featureGates":["Other"],"featureGate":[],"useEmulation":true},
		"migrations":{"allowPostCopy":true,"network":"lan","bandwithPerMigration":"64Mi","progressTimeout":7}}}}`), kv); err != nil {
		t.Fatal(err)
	}
	all := UnknownFields(kv)
	for message, foreign := range map[string]bool{
		"spec.configuratio has no effect: is spec.configuration meant?":                                                                         false,
		"spec.migrations has no effect: is spec.configuration.migrations meant?":                                                                false,
		"spec.configuration.evictionstrategy has no effect: is spec.configuration.evictionStrategy meant?":                                      false,
		"spec.configuration.cpuModel has no effect: vmgrace has no such setting":                                                                true,
		"spec.configuration.developerConfiguration.featureGate has no effect: is spec.configuration.developerConfiguration.featureGates meant?": false,
		"spec.configuration.developerConfiguration.useEmulation has no effect: vmgrace has no such setting":                                     true,
		"spec.configuration.migrations.allowPostCopy has no effect: vmgrace has no such setting":                                                true,
		"spec.configuration.migrations.network has no effect: vmgrace has no such setting":                                                      true,
		"spec.configuration.migrations.bandwithPerMigration has no effect: is spec.configuration.migrations.bandwidthPerMigration meant?":       false,
	} {
		if !slices.Contains(all, UnknownField{message, foreign}) {
			t.Errorf("missing: %s (%v)", message, foreign)
		}
	}
	if len(all) != 9 {
		t.Errorf("%d settings, want 9: %+v", len(all), all)
	}
	if all := UnknownFields(nil); all != nil {
		t.Errorf("without an object: %+v", all)
	}
}

// Given an object with all of KubeVirt's fields. Then those that vmgrace has not are KubeVirt's, and
// those that it has are no fault.
func TestNoFieldOfKubeVirtsIsAMisspeltOne(t *testing.T) {
	text, err := os.ReadFile("../../../api/kubevirt/testdata/settings.json")
	if err != nil {
		t.Fatal(err)
	}
	kv := &kubevirt.KubeVirt{}
	if err := json.Unmarshal(text, kv); err != nil {
		t.Fatal(err)
	}
	all := UnknownFields(kv)
	if len(all) != 32 {
		t.Errorf("%d fields, want as many as are reported at most", len(all))
	}
	kv.Spec.Configuration.Unknown = ""
	for _, f := range append(all, UnknownFields(kv)...) {
		if !f.Foreign {
			t.Error(f.Message)
		}
		for _, ours := range fields {
			if strings.HasPrefix(f.Message, ours+" ") {
				t.Error(f.Message)
			}
		}
	}
}
