package inpod

import (
	"fmt"
	"testing"
	"time"
)

// claiming looks at the directories of VMs each 10 ms for ten seconds, as if each always
// named another process. It returns how often each was checked.
func claiming(t *testing.T, vms []*vm) (looked []int) {
	t.Helper()
	looked = make([]int, len(vms))
	wake, begin := make([]time.Time, len(vms)), time.Now()
	for n := range 1000 {
		now := begin.Add(time.Duration(n) * 10 * time.Millisecond)
		for i, v := range vms {
			if v.waiting && !now.Before(wake[i]) {
				v.waiting = false // as lookAgain does
			}
			due, wait := v.turn(now)
			if due {
				looked[i]++
			}
			if wait > 0 {
				wake[i] = now.Add(wait)
			}
			if most := identifyEvery + time.Duration(len(vms))*nodeIdentifyEvery; wait > most {
				t.Fatalf("it is looked at again after %v, want %v at most", wait, most)
			}
		}
	}
	return looked
}

func (d *Driver) named(names int) (vms []*vm) {
	for n := range names {
		d.Directory(fmt.Sprint("ns_", n), "", nil)
		vms = append(vms, d.vm(fmt.Sprint("ns_", n)))
	}
	return vms
}

func TestClaimsAreLookedIntoNowAndThenWhateverTheySay(t *testing.T) {
	looked := claiming(t, New().named(1))[0]
	if most := identifyBurst + 10; looked > most || looked < 10 {
		t.Errorf("%d looks in 10 s, want %d at most", looked, most)
	}
}

func TestTheClaimsOfAllVMsTogetherAreLookedIntoNowAndThen(t *testing.T) {
	// Given: 200 launchers that each name one process after the other.
	all, least := 0, 1000
	for _, looked := range claiming(t, New().named(200)) {
		all += looked
		least = min(least, looked)
	}
	if most := nodeIdentifyBurst + int(10*time.Second/nodeIdentifyEvery); all > most || all < most/2 {
		t.Errorf("%d looks in 10 s, want %d at most", all, most)
	}
	if least == 0 {
		t.Error("one of them was never looked into")
	}
}
