package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// make demo runs the demo itself. These tests check what it prints.

func TestTableTellsWhatIsAmiss(t *testing.T) {
	asked := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	good := result{
		part: part{name: "deaf", guest: "g", grace: 6 * time.Second, want: "Forced"}, asked: asked,
		after: 6012 * time.Millisecond, forced: true, error: 2500 * time.Microsecond, outcome: "Forced",
	}
	bad := result{part: part{name: "polite", want: "Graceful"}, asked: asked, outcome: "Lost"}
	bad.expect(false, "outcome Lost")

	if text, ok := table([]result{good}); !ok || !strings.Contains(text, "03:04:05.678   6.012 s       +2.5 ms") {
		t.Errorf("ok %v in\n%s", ok, text)
	}
	if text, ok := table([]result{good, bad}); ok || !strings.Contains(text, "NO: outcome Lost") {
		t.Errorf("ok %v in\n%s", ok, text)
	}
}

func TestFailureRunsTheCleanupsInReverse(t *testing.T) {
	defer goleak.VerifyNone(t)
	var order []string
	s := &stage{ctx: t.Context(), out: &lines{w: &bytes.Buffer{}}}

	err := s.play(func() {
		s.Cleanup(func() { order = append(order, "first") })
		s.Cleanup(func() { order = append(order, "second") })
		s.Fatalf("no %s", "luck")
		order = append(order, "went on")
	})

	if err == nil || err.Error() != "no luck" || strings.Join(order, " ") != "second first" {
		t.Errorf("error %v, order %v", err, order)
	}
}
