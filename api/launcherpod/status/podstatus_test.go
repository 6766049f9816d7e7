package status

import (
	"testing"
	"time"
)

func TestWhatTheAgentWritesIsRead(t *testing.T) {
	deadline := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	s := Shutdown{Phase: ShuttingDown, Cause: "VMIDeleted", Deadline: deadline, GracePeriodSeconds: 30}
	if got, want := s.Message(), "phase=ShuttingDown deadline=2026-03-01T12:00:30Z gracePeriodSeconds=30"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, ok := Parse("VMIDeleted", s.Message()+" later=x"); !ok || got != s {
		t.Errorf("%+v, %v", got, ok)
	}
	s.Guest = "refused by the guest: phase=Held deadline=2027-01-01T00:00:00Z guest=x"
	if got, ok := Parse("VMIDeleted", s.Message()); !ok || got != s {
		t.Errorf("with words of the guest's: %+v, %v", got, ok)
	}
	if s.At(deadline.Add(-1)) != ShuttingDown || s.At(deadline) != Destroying {
		t.Errorf("around the deadline: %s, %s", s.At(deadline.Add(-1)), s.At(deadline))
	}
	if held := (Shutdown{Phase: Held, Deadline: deadline}); held.At(deadline.Add(time.Hour)) != Held {
		t.Error("a held shutdown has no deadline of its guest")
	}
}

func TestAnotherTextIsNoShutdown(t *testing.T) {
	for _, message := range []string{
		"", "the guest is asked", "phase=ShuttingDown", "phase=ShuttingDown deadline=soon", "phase=Gone deadline=2026-03-01T12:00:30Z",
	} {
		if got, ok := Parse("X", message); ok {
			t.Errorf("%q: %+v", message, got)
		}
	}
}
