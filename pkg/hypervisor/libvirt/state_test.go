package libvirt

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

func TestOnlyAPauseByAUserIsOne(t *testing.T) {
	for reason := range 20 {
		want := grace.PowerPausedOther
		switch libvirt.DomainPausedReason(reason) {
		case libvirt.DOMAIN_PAUSED_USER:
			want = grace.PowerPaused
		case libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:
			want = grace.PowerEnding
		default:
		}
		if got, running := powerOf(libvirt.DOMAIN_PAUSED, reason); got != want || !running {
			t.Errorf("reason %d: %q, %t, want %q", reason, got, running, want)
		}
		if by := pausedBy(libvirt.DOMAIN_PAUSED, reason); (by != "") != (want == grace.PowerPausedOther) {
			t.Errorf("reason %d is called %q", reason, by)
		}
	}
}

func TestStates(t *testing.T) {
	for state, want := range map[libvirt.DomainState]struct {
		power   grace.Power
		running bool
	}{
		libvirt.DOMAIN_RUNNING:     {grace.PowerOn, true},
		libvirt.DOMAIN_BLOCKED:     {grace.PowerOn, true},
		libvirt.DOMAIN_PMSUSPENDED: {grace.PowerSuspended, true},
		libvirt.DOMAIN_SHUTDOWN:    {grace.PowerEnding, true},
		libvirt.DOMAIN_NOSTATE:     {grace.PowerUnknown, true},
		libvirt.DomainState(99):    {grace.PowerUnknown, true},
		libvirt.DOMAIN_SHUTOFF:     {grace.PowerUnknown, false},
		libvirt.DOMAIN_CRASHED:     {grace.PowerCrashed, true},
	} {
		if power, running := powerOf(state, 0); power != want.power || running != want.running {
			t.Errorf("state %d: %q, %t", state, power, running)
		}
	}
}

func TestAStopIsTheGuestsOnlyIfAnEventSaidSo(t *testing.T) {
	type event struct {
		kind   libvirt.DomainEventType
		detail int
		want   grace.End
	}
	shutdown := func(d libvirt.DomainEventShutdownDetailType, want grace.End) event {
		return event{libvirt.DOMAIN_EVENT_SHUTDOWN, int(d), want}
	}
	stopped := func(d libvirt.DomainEventStoppedDetailType, want grace.End) event {
		return event{libvirt.DOMAIN_EVENT_STOPPED, int(d), want}
	}
	off := libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN
	for name, events := range map[string][]event{
		"guest":           {shutdown(libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST, grace.EndGuest), stopped(off, grace.EndGuest)},
		"host":            {shutdown(libvirt.DOMAIN_EVENT_SHUTDOWN_HOST, grace.EndDestroyed), stopped(off, grace.EndDestroyed)},
		"old QEMU":        {shutdown(libvirt.DOMAIN_EVENT_SHUTDOWN_FINISHED, grace.EndUnknown), stopped(off, grace.EndUnknown)},
		"missed":          {stopped(off, grace.EndUnknown)},
		"once":            {shutdown(libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST, grace.EndGuest), stopped(off, grace.EndGuest), stopped(off, grace.EndUnknown)},
		"forgotten":       {shutdown(libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST, grace.EndGuest), {libvirt.DOMAIN_EVENT_STARTED, 0, ""}, stopped(off, grace.EndUnknown)},
		"destroyed":       {shutdown(libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST, grace.EndGuest), stopped(libvirt.DOMAIN_EVENT_STOPPED_DESTROYED, grace.EndDestroyed)},
		"crashed":         {stopped(libvirt.DOMAIN_EVENT_STOPPED_CRASHED, grace.EndCrashed)},
		"migrated":        {stopped(libvirt.DOMAIN_EVENT_STOPPED_MIGRATED, grace.EndMoved)},
		"saved":           {stopped(libvirt.DOMAIN_EVENT_STOPPED_SAVED, grace.EndSaved)},
		"hibernates":      {{libvirt.DOMAIN_EVENT_PMSUSPENDED, int(libvirt.DOMAIN_EVENT_PMSUSPENDED_DISK), grace.EndGuest}},
		"failed":          {stopped(libvirt.DOMAIN_EVENT_STOPPED_FAILED, grace.EndFailed)},
		"from a snapshot": {stopped(libvirt.DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT, grace.EndUnknown)},
		"others": {
			{libvirt.DOMAIN_EVENT_SUSPENDED, 0, ""}, {libvirt.DOMAIN_EVENT_RESUMED, 0, ""}, {libvirt.DOMAIN_EVENT_DEFINED, 0, ""},
			{libvirt.DOMAIN_EVENT_UNDEFINED, 0, ""}, {libvirt.DOMAIN_EVENT_PMSUSPENDED, 0, ""}, {libvirt.DOMAIN_EVENT_CRASHED, 0, ""},
		},
	} {
		l := lifecycle{asked: map[string]grace.End{}}
		for n, e := range events {
			if got := l.end(uuidA, e.kind, e.detail); got != e.want {
				t.Errorf("%s: event %d says %q, want %q", name, n, got, e.want)
			}
		}
	}
}

func TestErrorsSayWhatTheyMean(t *testing.T) {
	for code, want := range map[libvirt.ErrorNumber]error{
		libvirt.ERR_NO_DOMAIN:             hypervisor.ErrNotFound,
		libvirt.ERR_OPERATION_INVALID:     hypervisor.ErrState,
		libvirt.ERR_AGENT_UNRESPONSIVE:    hypervisor.ErrNoAgent,
		libvirt.ERR_AGENT_COMMAND_TIMEOUT: hypervisor.ErrNoAgent,
		libvirt.ERR_ARGUMENT_UNSUPPORTED:  hypervisor.ErrNoAgent,
		libvirt.ERR_OPERATION_TIMEOUT:     nil,
	} {
		err := failed("ask", "ns_vm", plain(libvirt.Error{Code: code, Message: "the words"}))
		for _, sentinel := range []error{hypervisor.ErrNotFound, hypervisor.ErrState, hypervisor.ErrNoAgent, hypervisor.ErrUnavailable, hypervisor.ErrOtherInstance} {
			if errors.Is(err, sentinel) != errors.Is(want, sentinel) {
				t.Errorf("code %d: is %v: %t", code, sentinel, errors.Is(err, sentinel))
			}
		}
		text := "ask ns_vm: the words"
		if want != nil {
			text = fmt.Sprintf("ask ns_vm: %v: the words", want)
		}
		if err.Error() != text {
			t.Errorf("code %d reads %q", code, err)
		}
	}
}

// Given a paused domain, then only one that libvirt could not resume, or has sent, may have left.
func TestWhatPausesADomainSaysWhetherItMayHaveLeft(t *testing.T) {
	for reason, want := range map[libvirt.DomainPausedReason]hypervisor.Stay{
		libvirt.DOMAIN_PAUSED_MIGRATION: hypervisor.StayLeft, libvirt.DOMAIN_PAUSED_API_ERROR: hypervisor.StayNotResumed,
		libvirt.DOMAIN_PAUSED_USER: hypervisor.StayPaused, libvirt.DOMAIN_PAUSED_IOERROR: hypervisor.StayStopped, 99: hypervisor.StayStopped,
	} {
		if got := stayOfPaused(reason); got != want {
			t.Errorf("%d: %s, want %s", reason, got, want)
		}
	}
}

// Given the errors of libvirt 9.0 and of newer ones, when a guest's agent refuses, then its own words
// are told, in one short line; other internal errors are no answer of the guest's.
func TestARefusalIsToldInTheGuestsWords(t *testing.T) {
	const says = "unable to execute QEMU agent command 'guest-shutdown': Access\x1b[2J denied\nby an inhibitor"
	for message, code := range map[string]libvirt.ErrorNumber{
		"internal error: " + says:                libvirt.ERR_INTERNAL_ERROR,
		"guest agent command failed: " + says:    libvirt.ERR_AGENT_COMMAND_FAILED,
		"internal error: something of libvirt's": libvirt.ERR_INTERNAL_ERROR,
	} {
		err := failed("ask by agent", "ns_vm", plain(libvirt.Error{Code: code, Message: message}))
		want := "ask by agent ns_vm: " + message
		if strings.HasSuffix(message, says) {
			want = "ask by agent ns_vm: refused by the guest: Access [2J denied by an inhibitor"
		}
		if err.Error() != want {
			t.Errorf("%q reads %q", message, err)
		}
	}
	if words := hypervisor.Refused(strings.Repeat("é", 1000)).Words(); len(words) > 130 {
		t.Errorf("%d bytes of a guest's words", len(words))
	}
}
