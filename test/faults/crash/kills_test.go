package crash

import (
	"testing"

	"github.com/vmgrace/vmgrace/test/kills"
	"github.com/vmgrace/vmgrace/test/node"
)

func TestAThousandSIGKILLsAtRandomTimesBreakNothing(t *testing.T) {
	r := kills.Run(t, node.New(t), 1000)
	t.Log(r)
	for _, v := range r.Violations {
		t.Error(v)
	}
}
