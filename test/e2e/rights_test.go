package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests in this file examine the logs and Events of all tests that ran before them.

// logLine holds the fields of an agent's log line that the tests read.
type logLine struct {
	Time        time.Time
	Reason, Err string
}

// refused tells whether the API server refused something. It looks for words, because a
// number such as 403 may also be a guest's pid.
func (l logLine) refused() bool {
	said := strings.ToLower(l.Reason + " " + l.Err)
	return slices.ContainsFunc([]string{"forbidden", "forbids", "unauthorized", "does not accept the credentials"},
		func(word string) bool { return strings.Contains(said, word) })
}

func TestNoAgentWasEverRefusedAnything(t *testing.T) {
	w := given(t)
	lines, expected := 0, 0
	for _, n := range w.Nodes {
		for text := range strings.Lines(n.Run(t, "cat /var/log/vmgrace-e2e/*")) {
			lines++
			_, object, _ := strings.Cut(text, "{") // the container runtime puts its own text before it
			var line logLine
			switch err := json.Unmarshal([]byte("{"+object), &line); {
			case err != nil:
				t.Errorf("not a line of the agent: %q: %v", text, err)
			case !line.refused():
			case within(w.rightless, line.Time):
				expected++
			case within(w.unsettled, line.Time): // the API server answers before it has read the roles
			default:
				t.Errorf("%s: %s", n.Name, text)
			}
		}
	}
	if lines == 0 || len(w.rightless) > 0 && expected == 0 {
		t.Errorf("of %d lines, %d refuse something, in %d times without rights", lines, expected, len(w.rightless))
	}
	w.step("%d lines of all agents' logs read, %d of them about rights that a test had taken", lines, expected)
}

func within(windows []window, at time.Time) bool {
	return slices.ContainsFunc(windows, func(w window) bool { return at.After(w.from) && at.Before(w.to) })
}

func TestNoEventWasToldTwice(t *testing.T) {
	w := given(t)
	seen := map[string]bool{}
	for _, e := range w.events() {
		key := e.uid + e.Reason
		if e.Reason == "ShutdownHeld" {
			key += e.Message // a shutdown may be held again on the node that the VM moved to, with another latest moment
		}
		if seen[key] || e.source != "node-agent/1" {
			t.Errorf("told again: %+v", e)
		}
		seen[key] = true
	}
	w.step("%d Events", len(seen))
}
