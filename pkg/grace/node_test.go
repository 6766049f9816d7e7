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
		if got := (NodeShutdownTime{begin, begin.Add(delay)}).Turns(vms); !maps.Equal(got, want) {
			t.Errorf("within %v: %v, want %v", delay, got, want)
		}
	}
	if got := (NodeShutdownTime{begin, begin}).Turns(nil); len(got) != 0 {
		t.Errorf("of none: %v", got)
	}
}
