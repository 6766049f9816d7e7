//go:build !unit

package cluster_test

import (
	"errors"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/cluster/move"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
)

// Given a VM that is marked for a node taint. When an eviction marks it anew between the
// read that shows the taint gone and the write that takes the mark back, then the new mark
// stays. Otherwise the evicted VM would not leave its node.
func TestAMarkThatWasMadeAnewIsNotTakenBack(t *testing.T) {
	w := given(t)
	v := w.vm("vm", "n1", kubevirt.StrategyLiveMigrate, migratable)
	marks := move.Marks{Client: w.Client}
	w.must(marks.Move(t.Context(), w.read(v), evacuation.Explanation{Cause: evacuation.CauseNodeTaint}))
	tainted := w.read(v)
	w.must(marks.Move(t.Context(), w.read(v), evacuation.Explanation{Cause: "Eviction"}))

	if err := marks.Cancel(t.Context(), tainted); !errors.Is(err, move.ErrChanged) {
		t.Errorf("taken back by who saw the former mark: %v", err)
	}
	if !w.read(v).Marked() {
		t.Error("it is marked no more")
	}
	w.must(marks.Cancel(t.Context(), w.read(v)))
	if w.read(v).Marked() {
		t.Error("it is still marked")
	}
}
