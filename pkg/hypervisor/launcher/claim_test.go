package launcher

import (
	"testing"
	"time"
)

func TestClaimsAreLookedIntoNowAndThenWhateverTheySay(t *testing.T) {
	v, now, looked, later := &vm{}, time.Now(), 0, 0
	for n := range 1000 { // in ten seconds
		due, wait := v.turn(now.Add(time.Duration(n) * 10 * time.Millisecond))
		if due {
			looked++
		}
		if wait > 0 {
			later++
		}
		if wait > identifyEvery {
			t.Fatalf("it is looked at again after %v", wait)
		}
	}
	if most := identifyBurst + 10; looked > most || looked < 10 || later != 1 {
		t.Errorf("%d looks in 10 s and %d to come, want %d at most and 1", looked, later, most)
	}
}
