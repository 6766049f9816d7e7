package migrate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
	"github.com/vmgrace/vmgrace/pkg/process"
)

// UpdateStatus of the rig checks this for all other migrations of the tests.
func TestNothingIsOfferedWithoutACanonicalUUID(t *testing.T) {
	w := given(t)
	w.sends = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	w.uuids = map[string]string{"a": strings.ToUpper(guestUUID)} // as libvirt never writes it
	w.start()
	w.eventually("the target prepares", func() bool { return w.m.Status.Phase == kubevirt.MigrationPreparingTarget })
	for range 3 {
		w.looked("a")
		w.looked("b")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.m.Status; s.Phase != kubevirt.MigrationPreparingTarget || s.MigrationState.DomainUUID != "" {
		t.Errorf("phase %s, UUID %q", s.Phase, s.MigrationState.DomainUUID)
	}
}

// Formerly each connection of the source stated the UUID: none, "x" and 3,000 bytes were
// accepted.
func TestOnlyTheAgreedDomainIsLetIn(t *testing.T) {
	w := underWay(t)
	for name, uuid := range map[string]string{
		"none": "", "a word": "x", "a long text": strings.Repeat("x", 3000), "another": otherUUID,
		"upper case": strings.ToUpper(guestUUID), "without dashes": strings.ReplaceAll(guestUUID, "-", ""),
		"with a line": guestUUID + "\n",
	} {
		for _, as := range []role{roleRelay, roleControl} {
			l, err := dial(t.Context(), w.ca.node(t, "a"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: as, UUID: uuid})
			if err == nil {
				_ = l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "is of domain") {
				t.Errorf("%s as %s: %v", name, as, err)
			}
		}
	}
	// Nor by a message.
	l, err := dial(t.Context(), w.ca.node(t, "a"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleControl, UUID: guestUUID})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.writeLine(message{UUID: otherUUID}); err != nil {
		t.Fatal(err)
	}
	w.eventually("it is refused", func() bool { return w.refused["param"] == 1 })
}

// Whatever the status says: without a canonical UUID nothing is let in.
func TestNothingIsLetInWithoutAUUID(t *testing.T) {
	for _, uuid := range []string{"", "x", guestUUID[1:], "{" + guestUUID + "}"} {
		n := New(Config{Node: "b", Launchers: host{w: given(t)}})
		m := &Migration{}
		m.Status.Phase = kubevirt.MigrationTargetReady
		m.Status.MigrationState = &kubevirt.MigrationState{SourceNode: "a", TargetNode: "b", DomainUUID: uuid}
		s := &side{node: n, target: true, migration: m}
		if err := s.admit("a", hello{Role: roleRelay, UUID: uuid}); err == nil {
			t.Errorf("%q is let in", uuid)
		}
	}
}

func TestADomainThatWasReplacedIsNotSent(t *testing.T) {
	w := given(t)
	w.m.Status.MigrationState.DomainUUID = otherUUID
	w.sends = func(context.Context) error { t.Error("libvirt is asked to send it"); return errBroken }
	w.start()
	w.eventually("it stays, and says why", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceRunning && strings.Contains(s.FailureReason, "has UUID "+guestUUID+" now")
	})
}

// ticks returns the start time of a process that starts now.
func ticks() uint64 { return uint64(process.Age(0) / (10 * time.Millisecond)) }

// Given a relay connection, and a domain of the guest's name and another UUID that waits
// there for its source. If it was started while the connection was open, it came through
// it, and its process is ended. An older domain is somebody else's, as is one that runs.
func TestAStrangerThatCameByTheRelayIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		came  bool
		stay  hypervisor.Stay
		ended bool
	}{
		"incoming":        {true, hypervisor.StayBusy, true},
		"complete":        {true, hypervisor.StayPaused, true},
		"runs":            {true, hypervisor.StayRunning, false},
		"was there first": {false, hypervisor.StayPaused, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			w.libvirt = libvirtOf(t)
			w.m.Status.MigrationState.DomainUUID = guestUUID
			sending := make(chan struct{})
			w.sends = func(ctx context.Context) error { close(sending); <-ctx.Done(); return ctx.Err() }
			w.start()
			<-sending
			w.eventually("it is under way", func() bool { return w.m.Status.Phase == kubevirt.MigrationRunning })
			start := ticks() - 100
			l, err := dial(t.Context(), w.ca.node(t, "a"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleRelay, UUID: guestUUID})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if c.came {
				began := ticks()
				w.eventually("it starts some time after the migration began", func() bool { start = ticks(); return start > began+10 })
			}
			stranger := &proc{done: make(chan struct{})}
			w.mu.Lock()
			w.uuids, w.starts = map[string]string{"b": otherUUID}, map[string]uint64{"b": start}
			w.strangers = map[uint64]*proc{start: stranger}
			w.stays["b"] = c.stay
			w.mu.Unlock()
			w.looked("b")
			w.looked("b")
			w.looked("b")
			if closed(stranger.done) != c.ended {
				t.Errorf("ended: %t, want %t", closed(stranger.done), c.ended)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.removed) > 0 || len(w.resumed) > 0 {
				t.Errorf("removed %v, resumed %v", w.removed, w.resumed)
			}
		})
	}
}
