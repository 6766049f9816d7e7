package migrate

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

func template(t *testing.T, text string) URITemplate {
	t.Helper()
	is, err := ParseURITemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// givenNative returns a world whose two libvirts send guests directly.
func givenNative(t *testing.T, text string) *world {
	t.Helper()
	w := given(t)
	w.uris = map[string]URITemplate{"a": template(t, text), "b": template(t, text)}
	return w
}

func TestLibvirtSendsAGuestByItself(t *testing.T) {
	for text, want := range map[string]hypervisor.Outgoing{
		"qemu+tcp://{{address}}/system":       {URI: "qemu+tcp://127.0.0.1/system", Transport: hypervisor.TransportNative},
		"qemu+tls://{{address}}:16514/system": {URI: "qemu+tls://127.0.0.1:16514/system", Transport: hypervisor.TransportNativeTLS},
	} {
		t.Run(text, func(t *testing.T) {
			w := givenNative(t, text)
			sent := make(chan struct{})
			w.sends = func(context.Context) error {
				<-sent
				w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
				return nil
			}
			w.start()
			w.eventually("libvirt is asked to send it", func() bool { return w.uri != "" })
			if w.out.URI != want.URI || w.out.Transport != want.Transport {
				t.Errorf("%+v, want %+v", w.out, want)
			}
			// The guest does not come through the agents.
			if l, err := dial(t.Context(), w.ca.node(t, "a"), "b", w.addrs["b"], hello{MigrationUID: "m-1", Role: roleRelay, UUID: guestUUID}); err == nil || !strings.Contains(err.Error(), "comes by --migration-uri here") {
				t.Errorf("a connection for the guest: %v, %v", l, err)
			}
			close(sent)
			w.eventually("the guest has moved", func() bool {
				s := w.m.Status.MigrationState
				return s.SourceState == kubevirt.SourceGone && s.TargetState == kubevirt.TargetRunning && slices.Equal(w.resumed, []string{"b"})
			})
		})
	}
}

// The object has the reason in one line, and libvirt was not asked for anything.
func TestWhatCannotBeSentByLibvirtItselfIsDeclined(t *testing.T) {
	const uri = "qemu+tcp://{{address}}/system"
	for name, c := range map[string]struct {
		source, target, address string
		want                    string
	}{
		"the source alone has a template": {source: uri, want: "this node sends guests by --migration-uri, which the agent of node b does not have: give it to all nodes or to none"},
		"the target alone has a template": {target: uri, want: "node b takes guests by --migration-uri, which the agent of this node does not have: give it to all nodes or to none"},
		"an address that is more than one": {source: uri, target: uri, address: "127.0.0.1/session?socket=/x:9470",
			want: `node b cannot be reached by --migration-uri: the host of "127.0.0.1/session?socket=/x:9470" is neither an IP address nor a name`},
	} {
		t.Run(name, func(t *testing.T) {
			w := given(t)
			w.uris = map[string]URITemplate{"a": template(t, c.source), "b": template(t, c.target)}
			w.address = c.address
			w.sends = func(context.Context) error { t.Error("libvirt is asked to send it"); return errBroken }
			w.start()
			w.eventually("it stays", func() bool {
				s := w.m.Status.MigrationState
				return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent && s.FailureReason == c.want
			})
		})
	}
}

// The source's libvirtd dies after the guest was sent, and the target's has removed
// it: only the source's agent knows that nothing more comes.
func TestASourceThatIsLeftPausedGoesOnWhereNothingArrivedByItself(t *testing.T) {
	w := givenNative(t, "qemu+tcp://{{address}}/system")
	sent := make(chan struct{})
	w.sends = func(context.Context) error {
		<-sent
		w.becomes(hypervisor.StayLeft, hypervisor.StayAbsent)
		return errBroken
	}
	w.start()
	w.eventually("it is under way", func() bool { return w.uri != "" && w.m.Status.Phase == kubevirt.MigrationRunning })
	// Before the guest is sent the target has no domain, and does not report
	// Absent.
	w.looked("b")
	w.looked("b")
	w.mu.Lock()
	if s := w.m.Status.MigrationState.TargetState; s != "" {
		t.Errorf("the target reports %s while it is sent", s)
	}
	w.mu.Unlock()
	close(sent)
	w.eventually("it goes on at the source", func() bool {
		s := w.m.Status.MigrationState
		return s.TargetState == kubevirt.TargetAbsent && s.SourceState == kubevirt.SourceRunning && slices.Equal(w.resumed, []string{"a"})
	})
}

// A domain of the same name that somebody else started there is not the guest.
func TestAnotherDomainThanWasSentIsLeftAlone(t *testing.T) {
	w := givenNative(t, "qemu+tcp://{{address}}/system")
	w.uuids = map[string]string{"b": otherUUID}
	sent := make(chan struct{})
	w.sends = func(context.Context) error {
		<-sent
		w.becomes(hypervisor.StayRunning, hypervisor.StayPaused)
		return errBroken
	}
	w.start()
	w.eventually("libvirt is asked to send it", func() bool { return w.uri != "" })
	close(sent)
	w.eventually("it stays at the source", func() bool {
		s := w.m.Status.MigrationState
		return s.SourceState == kubevirt.SourceRunning && s.TargetState == kubevirt.TargetAbsent
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.removed) > 0 || len(w.resumed) > 0 {
		t.Errorf("removed %v, resumed %v", w.removed, w.resumed)
	}
}

func TestTheDowntimeIsFromTheStopToTheReturnOfTheResume(t *testing.T) {
	for name, c := range map[string]struct {
		seen bool
		want int
	}{"seen": {true, 1}, "the stop was not seen": {false, 0}} {
		t.Run(name, func(t *testing.T) {
			const resumes = 300 * time.Millisecond
			w := given(t)
			w.resumes = resumes
			var before time.Time
			w.sends = func(context.Context) error {
				before = time.Now()
				if c.seen {
					w.nodes["a"].Stopped("another", before)
					w.nodes["a"].Stopped("ns_vm", before)
					w.nodes["b"].Stopped("ns_vm", before.Add(-time.Hour)) // is not its source
				}
				w.becomes(hypervisor.StayAbsent, hypervisor.StayPaused)
				return nil
			}
			w.start()
			w.eventually("the guest has moved", func() bool {
				s := w.m.Status.MigrationState
				return s.SourceState == kubevirt.SourceGone && s.TargetState == kubevirt.TargetRunning && (s.DowntimeMilliseconds > 0 || !c.seen)
			})
			whole := time.Since(before)
			w.change() // a repeated message is not measured again
			w.looked("a")
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.downtimes) != c.want {
				t.Fatalf("measured %v", w.downtimes)
			}
			if c.seen && (w.downtimes[0] < resumes || w.downtimes[0] > whole || w.m.Status.MigrationState.DowntimeMilliseconds != w.downtimes[0].Milliseconds()) {
				t.Errorf("measured %v, status has %d ms; between %v and %v", w.downtimes, w.m.Status.MigrationState.DowntimeMilliseconds, resumes, whole)
			}
		})
	}
}
