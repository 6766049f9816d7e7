//go:build !unit

package handover

import (
	"strconv"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

const downtime = "vmgrace_migration_downtime_seconds"

// mustMove moves the guest and checks the downtime that the source's agent measures: it
// measures it once, and no more than the test has seen.
func (v *vm) mustMove(to *host, options string) {
	w, from := v.w, v.here.host
	w.Helper()
	before := from.agent.Metrics(w)
	seen := v.watchGap(from, to)
	v.schedule(to, options)
	if !v.decided() {
		w.Fatalf("it was not moved to %s: %s", to.name, v.whyFailed())
	}
	// slack is for the target's message that the guest runs: it may reach the source's
	// agent later than the API server.
	const slack = time.Second
	var count, sum float64
	node.Eventually(w, soon, func() bool {
		m := from.agent.Metrics(w)
		count, sum = m[downtime+"_count"]-before[downtime+"_count"], m[downtime+"_sum"]-before[downtime+"_sum"]
		return count > 0
	}, "the downtime is not measured")
	took := time.Duration(sum * float64(time.Second))
	gap := <-seen
	if count != 1 || took <= 0 || took > gap+slack {
		w.Errorf("downtime: %v measured %v times; it ran on neither node for %v at most", took, count, gap)
	}
	told := w.get("vmim", v.migration, "{.status.migrationState.downtimeMilliseconds}")
	if told != strconv.FormatInt(took.Milliseconds(), 10) {
		w.Errorf("downtime: %s ms told, %v measured", told, took)
	}
	w.Logf("stood still for %v; ran on neither node for %v at most", took, gap)
}

// watchGap measures for how long at most the guest runs on neither node: from the last time
// at which it was seen on from, to the first time at which it was seen on to.
func (v *vm) watchGap(from, to *host) <-chan time.Duration {
	seen := make(chan time.Duration, 1)
	ctx := v.w.Context()
	go func() {
		last := time.Now()
		for ctx.Err() == nil {
			if at := time.Now(); from.runs(v.Domain) {
				last = at
			} else if to.runs(v.Domain) {
				seen <- time.Since(last)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return seen
}
