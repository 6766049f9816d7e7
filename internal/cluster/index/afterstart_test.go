package index

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Given a controller that watches pods beside the VMIs that it reconciles. Then a pod that is there at
// its start makes it reconcile nothing, and each later event of one counts.
func TestOnlyEventsAfterTheStartCount(t *testing.T) {
	p := AfterStart()
	if p.Create(event.CreateEvent{IsInInitialList: true}) {
		t.Error("an object that is there at the start counts")
	}
	if !p.Create(event.CreateEvent{}) || !p.Update(event.UpdateEvent{}) || !p.Delete(event.DeleteEvent{}) {
		t.Error("a later event does not count")
	}
}
