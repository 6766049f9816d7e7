// Package status is the condition ShuttingDown of a launcher pod: the node's agent writes
// it, kubectl vmgrace reads it. The package does no I/O.
package status

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Type is the type of the condition. It is True while a shutdown is held or under way.
const Type = "ShuttingDown"

// Phases of a shutdown, as node-agent status names them.
const (
	Held         = "Held"
	ShuttingDown = "ShuttingDown"
	Destroying   = "Destroying"
)

// Shutdown is what the agent knows of a shutdown.
type Shutdown struct {
	// Phase is Held or ShuttingDown. Destroying follows from the deadline.
	Phase string
	// Cause is the condition's reason.
	Cause string
	// Deadline is when the guest is destroyed; in phase Held, until when the VM may be moved.
	Deadline time.Time
	// GracePeriodSeconds is the grace period, rounded up.
	GracePeriodSeconds int64
	// Guest is why the guest has not shut down so far, "" where nothing is known. It may have the
	// guest's own words, which are not trusted.
	Guest string
}

// Message returns the condition's message: words of the form key=value. That of Guest is one word,
// so that no word of the guest's is taken for another.
func (s Shutdown) Message() string {
	text := fmt.Sprintf("phase=%s deadline=%s gracePeriodSeconds=%d", s.Phase, s.Deadline.UTC().Format(time.RFC3339), s.GracePeriodSeconds)
	if s.Guest != "" {
		text += " guest=" + strings.Join(strings.Fields(s.Guest), "_")
	}
	return text
}

// At returns the phase at a time.
func (s Shutdown) At(now time.Time) string {
	if s.Phase == ShuttingDown && !now.Before(s.Deadline) {
		return Destroying
	}
	return s.Phase
}

// Parse reads the reason and the message of a condition. Words that it does not know are
// ignored. ok is false without a phase or a deadline.
func Parse(reason, message string) (s Shutdown, ok bool) {
	s.Cause = reason
	for _, word := range strings.Fields(message) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "phase":
			s.Phase = value
		case "deadline":
			s.Deadline, _ = time.Parse(time.RFC3339, value) // an unreadable time counts as absent
		case "guest":
			s.Guest = strings.ReplaceAll(value, "_", " ")
		case "gracePeriodSeconds":
			s.GracePeriodSeconds, _ = strconv.ParseInt(value, 10, 64) // as above
		}
	}
	return s, (s.Phase == Held || s.Phase == ShuttingDown) && !s.Deadline.IsZero()
}
