package migrate

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// sendsThis makes the source's libvirt send frame through the agents. It fails as libvirt
// does, which only knows that its connection was closed.
func (w *world) sendsThis(frame string) {
	w.sends = func(ctx context.Context) error {
		defer w.becomes(hypervisor.StayRunning, hypervisor.StayAbsent)
		w.mu.Lock()
		_, socket, _ := strings.Cut(w.uri, "socket=")
		w.mu.Unlock()
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, frame); err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, c) // until it is closed
		return errBroken
	}
}

// libvirtOf starts a libvirt that answers nothing, until the test ends.
func libvirtOf(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libvirt-sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return path
}

// libvirt's own error only says that a connection was closed: failureReason must have the
// target's reason.
func TestWhatTheTargetRefusesIsWhyTheMigrationFailed(t *testing.T) {
	const invalid = "\x00\x00\x00\x1c\xde\xad\xbe\xef\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	for name, c := range map[string]struct {
		libvirt func(t *testing.T) string
		want    string
	}{
		"a frame that is none":     {libvirtOf, "node b did not let it in: refused: "},
		"no libvirt at the target": {func(*testing.T) string { return "/nowhere/libvirt-sock" }, "node b did not let it in: libvirt of this node: "},
	} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			w.libvirt = c.libvirt(t)
			w.sendsThis(invalid)
			w.start()
			w.eventually("the failure has the reason", func() bool {
				s := w.m.Status.MigrationState
				return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent &&
					strings.HasPrefix(s.FailureReason, c.want) && !strings.Contains(s.FailureReason, "\n")
			})
		})
	}
}

func TestATargetThatCannotBeReachedIsWhyTheMigrationFailed(t *testing.T) {
	w := given(t)
	w.address = "127.0.0.1:1" // where nobody listens
	w.sendsThis("")
	w.start()
	w.eventually("the failure has the reason", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent &&
			strings.HasPrefix(s.FailureReason, "connect to the agent of b at 127.0.0.1:1: ")
	})
}

// Given a node that shuts down: what came to it would be shut down there. A migration to it fails
// at once, and says why, and the guest goes on where it is.
func TestANodeThatShutsDownTakesNoGuest(t *testing.T) {
	w := given(t)
	w.sends = func(context.Context) error { t.Error("libvirt is asked to send it"); return errBroken }
	w.goesDown.Store(true)
	w.start()
	w.eventually("it is refused", func() bool {
		s := w.m.Status.MigrationState
		return s.TargetState == kubevirt.TargetAbsent && s.FailureReason == "node b shuts down"
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stays["a"] != hypervisor.StayRunning || len(w.removed) > 0 {
		t.Errorf("the guest: %v, removed %v", w.stays, w.removed)
	}
}
