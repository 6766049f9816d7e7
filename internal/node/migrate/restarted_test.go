package migrate

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Given the source's agent is started again while its guest was sent, which ends that. Then the failure says so.
func TestARestartOfTheSourcesAgentIsWhyTheMigrationFailed(t *testing.T) {
	w := given(t)
	w.m.Status.Phase = kubevirt.MigrationRunning
	w.becomes(hypervisor.StayRunning, hypervisor.StayAbsent)
	w.start()
	w.eventually("the failure has the reason", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceRunning && s.FailureReason == "the agent of node a was restarted while the guest was sent"
	})
}

// Given the guest is sent, and libvirt's connection breaks. Then the failure names the target's agent where the
// control connection broke, too; else libvirt's error counts.
func TestARestartOfTheTargetsAgentIsWhyTheMigrationFailed(t *testing.T) {
	for name, linked := range map[string]bool{"its agent has gone, too": false, "its agent is there": true} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			s := newSide(New(Config{Node: "a", Log: slog.New(slog.DiscardHandler)}), w.m, false)
			s.relayConnected, s.linked = true, linked
			close(s.relayEnded)
			text := s.failureCause(t.Context(), errBroken).Error()
			if named := strings.HasPrefix(text, "the agent of node b was restarted while the guest was sent"); named == linked || !strings.HasSuffix(text, errBroken.Error()) {
				t.Error(text)
			}
		})
	}
}
