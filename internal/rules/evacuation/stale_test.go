package evacuation_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// A mark is taken back where the VM cannot leave the node that it names. Every other mark is
// one that somebody waits for.
func TestAMarkOfNoNodeOfTheVMIsStale(t *testing.T) {
	for name, c := range map[string]struct {
		node, mark string
		change     func(*evacuation.StaleFacts)
		want       string
	}{
		"no mark":                 {"a", "", func(f *evacuation.StaleFacts) { f.NodeGone = true }, ""},
		"of its node":             {"a", "a", nil, ""},
		"of a former node":        {"b", "a", nil, "it is a mark of node a, and the VM is on node b"},
		"of a former node, gone":  {"b", "a", func(f *evacuation.StaleFacts) { f.NodeGone = true }, "it is a mark of node a, and the VM is on node b"},
		"former node, External":   {"b", "a", func(f *evacuation.StaleFacts) { f.Strategy = kubevirt.StrategyExternal }, "it is a mark of node a, and the VM is on node b"},
		"on its way":              {"b", "a", func(f *evacuation.StaleFacts) { f.Migrating = true }, ""},
		"not placed":              {"", "a", nil, ""},
		"not placed, node gone":   {"", "a", func(f *evacuation.StaleFacts) { f.NodeGone = true }, "node a does not exist, so nobody drains it"},
		"its node is gone":        {"a", "a", func(f *evacuation.StaleFacts) { f.NodeGone = true }, "node a does not exist, so nobody drains it"},
		"gone, External":          {"a", "a", func(f *evacuation.StaleFacts) { f.NodeGone, f.Strategy = true, kubevirt.StrategyExternal }, ""},
		"gone, launcher ends":     {"a", "a", func(f *evacuation.StaleFacts) { f.NodeGone, f.LauncherTerminating = true, true }, ""},
		"gone, while it migrates": {"a", "a", func(f *evacuation.StaleFacts) { f.NodeGone, f.Migrating = true, true }, ""},
		"the VMI is being deleted": {"b", "a", func(f *evacuation.StaleFacts) {
			f.VMI.DeletionTimestamp = new(metav1.Now())
		}, ""},
	} {
		v := &kubevirt.VirtualMachineInstance{Status: kubevirt.VirtualMachineInstanceStatus{NodeName: c.node, EvacuationNodeName: c.mark}}
		f := evacuation.StaleFacts{VMI: v, Strategy: kubevirt.StrategyLiveMigrate}
		if c.change != nil {
			c.change(&f)
		}
		if remove, why := evacuation.StaleMark(f); why != c.want || remove != (c.want != "") {
			t.Errorf("%s: %v, %q, want %q", name, remove, why, c.want)
		}
	}
}
