package shim

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// guestAgent answers as qemu-ga does. shutdown is its answer to guest-shutdown: one that shuts down
// says nothing.
func guestAgent(frozen bool, shutdown ...string) func(command, id string) []string {
	return func(command, id string) []string {
		switch command {
		case "guest-sync-delimited":
			return []string{`{"return": {"of": "an earlier conversation`, "\xff" + `{"return": 1}`, "\xff" + `{"return": ` + id + `}`}
		case "guest-fsfreeze-status":
			if frozen {
				return []string{`{"return": "frozen"}`}
			}
			return []string{`{"error": {"class": "CommandNotFound", "desc": "not supported"}}`}
		case "guest-fsfreeze-thaw":
			frozen = false
			return []string{`{"return": 1}`}
		case "guest-shutdown":
			if frozen {
				return []string{`{"error": {"desc": "Command guest-shutdown has been disabled: the agent is in frozen state"}}`}
			}
			return shutdown
		default:
			return nil
		}
	}
}

// Given a guest's agent, when it is asked to shut the guest down, then it is heard in its time, and
// file systems that are frozen are thawed first.
func TestTheGuestsAgentIsAsked(t *testing.T) {
	const timeout = refuseTime + 300*time.Millisecond
	flood := strings.Repeat("x", 1000)
	for name, c := range map[string]struct {
		answer func(command, id string) []string
		want   string // of the error, "" for none
		asked  bool
	}{
		"it shuts down":        {guestAgent(false), "", true},
		"it is frozen":         {guestAgent(true), "", true},
		"it refuses":           {guestAgent(false, `{"error": {"desc": "Access denied"}}`), signals.ResultRefused + "Access denied", true},
		"it says that it will": {guestAgent(false, `{"return": {}}`), "", true},
		"it is silent":         {func(string, string) []string { return nil }, "no guest agent answers", false},
		"it floods":            {func(string, string) []string { return slices.Repeat([]string{flood}, 200) }, "no guest agent answers", false},
		"it lies":              {func(string, string) []string { return []string{"\xff" + "["} }, "no guest agent answers", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := listen(t, "", c.answer)
			err := askAgent(t.Context(), m.path, time.Now().Add(timeout))
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if got := m.commands(); slices.Contains(got, "guest-shutdown") != c.asked || name == "it is frozen" != slices.Contains(got, "guest-fsfreeze-thaw") {
				t.Errorf("%q", got)
			}
		})
	}
	if err := askAgent(t.Context(), t.TempDir()+"/none", askDeadline()); err == nil || errors.Is(err, errGuestRefuses) {
		t.Errorf("without a socket: %v", err)
	}
}
