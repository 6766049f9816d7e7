package acceptance

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/kills"
)

// The long version is in test/faults.
func TestSIGKILLsAtRandomTimesBreakNothing(t *testing.T) {
	r := kills.Run(t, shared, 60)
	t.Log(r)
	for _, v := range r.Violations {
		t.Error(v)
	}
}
