package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Leftover is a kind of what the sweep removes.
type Leftover string

// The kinds of leftovers.
const (
	LeftMark      Leftover = "mark"
	LeftLabel     Leftover = "label"
	LeftPod       Leftover = "pod"
	LeftBudget    Leftover = "budget"
	LeftMigration Leftover = "migration"
	LeftFinalizer Leftover = "finalizer"
	LeftCondition Leftover = "condition"
)

func newLeftovers(f promauto.Factory) *prometheus.CounterVec {
	v := f.NewCounterVec(prometheus.CounterOpts{
		Name: "vmgrace_leftovers_removed_total",
		Help: "What belonged to nobody and was removed by the sweep, by kind: mark, label, pod, budget, migration, finalizer, condition.",
	}, []string{"kind"})
	for _, kind := range []Leftover{LeftMark, LeftLabel, LeftPod, LeftBudget, LeftMigration, LeftFinalizer, LeftCondition} {
		v.WithLabelValues(string(kind)) // 0, so that the first one is an increase
	}
	return v
}

// LeftoverRemoved counts what the sweep has removed.
func (m *Meter) LeftoverRemoved(kind Leftover) { m.leftovers.WithLabelValues(string(kind)).Inc() }
