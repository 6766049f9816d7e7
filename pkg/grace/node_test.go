package grace

import (
	"maps"
	"testing"
	"time"
)

func TestTurnsOfANodesVMs(t *testing.T) {
	begin := Mono(0).Add(time.Hour)
	vms := map[string]Summary{
		"low": {Priority: -5, Needs: 30 * time.Second}, "low too": {Priority: -5, Needs: 10 * time.Second},
		"none": {Needs: 20 * time.Second}, "high": {Priority: 1000, Needs: 40 * time.Second},
	}
	after := func(d time.Duration) Mono { return begin.Add(d) }
	for delay, want := range map[time.Duration]map[string]Mono{
		90 * time.Second:   {"low": begin, "low too": begin, "none": after(30 * time.Second), "high": after(50 * time.Second)},
		90*time.Second - 1: {"low": begin, "low too": begin, "none": begin, "high": begin},
	} {
		if got := (NodeShutdownTime{Begin: begin, End: begin.Add(delay)}).Turns(vms); !maps.Equal(got, want) {
			t.Errorf("within %v: %v, want %v", delay, got, want)
		}
	}
	if got := (NodeShutdownTime{Begin: begin, End: begin}).Turns(nil); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
}

// Given a shutdown that is under way, kept by an earlier agent or none, when logind speaks, then
// its word counts, and an end that it confirms in time stays.
func TestWhatLogindSaysOfANodesShutdown(t *testing.T) {
	begin := Mono(0).Add(time.Hour)
	end := begin.Add(time.Minute)
	underWay, kept := NodeShutdownTime{Begin: begin, End: end}, NodeShutdownTime{Begin: begin, End: end, Kept: true}
	anew := func(now Mono) NodeShutdownTime { return NodeShutdownTime{Begin: now, End: now.Add(time.Second)} }
	for name, c := range map[string]struct {
		is   NodeShutdownTime
		down bool
		now  Mono
		want NodeShutdownTime
	}{
		"it begins":                   {NodeShutdownTime{}, true, begin, anew(begin)},
		"it goes on":                  {underWay, true, end - 1, underWay},
		"its end has passed":          {underWay, true, end, underWay},
		"called off":                  {underWay, false, begin, NodeShutdownTime{}},
		"kept, confirmed":             {kept, true, end - 1, underWay},
		"kept, of an earlier one":     {kept, true, end, anew(end)},
		"kept, called off since then": {kept, false, begin, NodeShutdownTime{}},
	} {
		if got := c.is.Told(c.down, time.Second, c.now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
