package watch

import (
	"strconv"
	"testing"

	"github.com/fsnotify/fsnotify"
)

func TestAStormOfEventsIsTakenTogetherANameOnce(t *testing.T) {
	// Given: events that wait, most of them about one name.
	events := make(chan fsnotify.Event, eventBuffer)
	for i := range eventBuffer - 1 {
		events <- fsnotify.Event{Name: "storm", Op: []fsnotify.Op{fsnotify.Create, fsnotify.Rename}[i%2]}
	}
	events <- fsnotify.Event{Name: "neighbour", Op: fsnotify.Create}
	// When the first of them is taken.
	all := coalesce(<-events, events)
	// Then: all are taken, and no change of a name is lost.
	if len(events) != 0 || len(all) != 2 || all["storm"].Op != fsnotify.Create|fsnotify.Rename || all["neighbour"].Op != fsnotify.Create {
		t.Errorf("%d left; %v", len(events), all)
	}
}

func TestAStormThatNeverEndsIsTakenInParts(t *testing.T) {
	events, done := make(chan fsnotify.Event, eventBuffer), make(chan struct{})
	defer close(done)
	go func() {
		for i := 0; ; i++ {
			select {
			case events <- fsnotify.Event{Name: strconv.Itoa(i)}:
			case <-done:
				return
			}
		}
	}()
	if n := len(coalesce(<-events, events)); n > eventBuffer+1 {
		t.Errorf("%d at once", n)
	}
}
