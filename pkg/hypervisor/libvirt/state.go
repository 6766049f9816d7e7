package libvirt

import (
	"fmt"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// powerOf returns the power for a state of virDomainGetState. running is false for a
// domain that is defined but off.
func powerOf(state libvirt.DomainState, reason int) (p grace.Power, running bool) {
	switch state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED:
		return grace.PowerOn, true
	case libvirt.DOMAIN_PAUSED:
		return pausedOf(libvirt.DomainPausedReason(reason)), true
	case libvirt.DOMAIN_PMSUSPENDED:
		return grace.PowerSuspended, true
	case libvirt.DOMAIN_SHUTDOWN:
		return grace.PowerEnding, true
	case libvirt.DOMAIN_CRASHED: // on_crash=preserve keeps its process
		return grace.PowerCrashed, true
	case libvirt.DOMAIN_SHUTOFF:
		return grace.PowerUnknown, false
	default: // NOSTATE, and what later versions may add
		return grace.PowerUnknown, true
	}
}

// pausedOf returns a paused domain's power. On libvirt 9.0 (measured) virDomainSuspend
// and a start with --paused give the reason USER.
func pausedOf(reason libvirt.DomainPausedReason) grace.Power {
	switch reason {
	case libvirt.DOMAIN_PAUSED_USER:
		return grace.PowerPaused
	case libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:
		return grace.PowerEnding
	default:
		return grace.PowerPausedOther
	}
}

// pausedBy returns by what a domain is paused that is not to be resumed, in words.
func pausedBy(state libvirt.DomainState, reason int) string {
	if state != libvirt.DOMAIN_PAUSED {
		return ""
	}
	switch libvirt.DomainPausedReason(reason) {
	case libvirt.DOMAIN_PAUSED_USER, libvirt.DOMAIN_PAUSED_SHUTTING_DOWN:
		return ""
	case libvirt.DOMAIN_PAUSED_MIGRATION, libvirt.DOMAIN_PAUSED_POSTCOPY, libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED:
		return "migration"
	case libvirt.DOMAIN_PAUSED_SAVE:
		return grace.PausedBySave
	case libvirt.DOMAIN_PAUSED_DUMP:
		return "dump"
	case libvirt.DOMAIN_PAUSED_IOERROR:
		return "I/O error"
	case libvirt.DOMAIN_PAUSED_WATCHDOG:
		return "watchdog"
	case libvirt.DOMAIN_PAUSED_FROM_SNAPSHOT, libvirt.DOMAIN_PAUSED_SNAPSHOT:
		return "snapshot"
	case libvirt.DOMAIN_PAUSED_CRASHED:
		return "crash of the guest"
	default:
		return fmt.Sprintf("libvirt's reason %d", reason)
	}
}

// shutoffOf returns how a domain that is defined but off ended.
func shutoffOf(reason int) grace.End {
	switch libvirt.DomainShutoffReason(reason) {
	case libvirt.DOMAIN_SHUTOFF_SHUTDOWN:
		return grace.EndGuest
	case libvirt.DOMAIN_SHUTOFF_DESTROYED:
		return grace.EndDestroyed
	case libvirt.DOMAIN_SHUTOFF_CRASHED:
		return grace.EndCrashed
	case libvirt.DOMAIN_SHUTOFF_MIGRATED:
		return grace.EndMoved
	case libvirt.DOMAIN_SHUTOFF_SAVED:
		return grace.EndSaved
	case libvirt.DOMAIN_SHUTOFF_FAILED:
		return grace.EndFailed
	default:
		return grace.EndUnknown
	}
}

// lifecycle reads libvirt's lifecycle events. It remembers who asked for a shutdown,
// because libvirt reports a QEMU that somebody killed by SIGTERM as shut down. Measured
// on 9.0, it says SHUTDOWN by the host, then STOPPED by a shutdown. (With
// on_poweroff=restart it only says STOPPED by a failure; a SIGKILL looks the same.)
type lifecycle struct {
	asked map[string]grace.End // by UUID, from SHUTDOWN to STOPPED
}

// end returns why the domain ended or is ending, EndUnknown for events that only ask for
// a look.
func (l *lifecycle) end(uuid string, event libvirt.DomainEventType, detail int) grace.End {
	switch event {
	case libvirt.DOMAIN_EVENT_SHUTDOWN:
		end := shutdownOf(libvirt.DomainEventShutdownDetailType(detail))
		l.asked[uuid] = end
		return end
	case libvirt.DOMAIN_EVENT_STOPPED:
		asked := l.asked[uuid]
		delete(l.asked, uuid)
		return stoppedOf(libvirt.DomainEventStoppedDetailType(detail), asked)
	case libvirt.DOMAIN_EVENT_PMSUSPENDED:
		if libvirt.DomainEventPMSuspendedDetailType(detail) == libvirt.DOMAIN_EVENT_PMSUSPENDED_DISK {
			return grace.EndGuest // it hibernates, and powers off next; its state does not say so
		}
		return grace.EndUnknown
	case libvirt.DOMAIN_EVENT_STARTED:
		delete(l.asked, uuid)
		return grace.EndUnknown
	default:
		return grace.EndUnknown
	}
}

func shutdownOf(detail libvirt.DomainEventShutdownDetailType) grace.End {
	switch detail {
	case libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST:
		return grace.EndGuest
	case libvirt.DOMAIN_EVENT_SHUTDOWN_HOST:
		return grace.EndDestroyed
	default:
		return grace.EndUnknown
	}
}

// stoppedOf returns why a domain stopped. asked is EndUnknown if the event before got
// lost; then only the log can tell a shutdown from a kill.
func stoppedOf(detail libvirt.DomainEventStoppedDetailType, asked grace.End) grace.End {
	switch detail {
	case libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN:
		return asked
	case libvirt.DOMAIN_EVENT_STOPPED_DESTROYED:
		return grace.EndDestroyed
	case libvirt.DOMAIN_EVENT_STOPPED_CRASHED:
		return grace.EndCrashed
	case libvirt.DOMAIN_EVENT_STOPPED_MIGRATED:
		return grace.EndMoved
	case libvirt.DOMAIN_EVENT_STOPPED_SAVED:
		return grace.EndSaved
	case libvirt.DOMAIN_EVENT_STOPPED_FAILED:
		return grace.EndFailed
	default:
		return grace.EndUnknown
	}
}
