package logind

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/internal/node/agent"
)

// A reboot that bypasses logind shows only in systemd's manager: it has a job for
// shutdown.target, and its SystemState is "stopping" (org.freedesktop.systemd1(5)).
const (
	systemd        = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = systemd + ".Manager"
	properties     = "org.freedesktop.DBus.Properties"
	stateStopping  = "stopping"
	// defaultStop is systemd's own DefaultTimeoutStopSec.
	defaultStop = 90 * time.Second
	// systemdTimeout bounds a question to systemd, because logind's state waits for it.
	systemdTimeout = time.Second
)

// stopTargets returns the units whose job means that the node stops.
func stopTargets() []string {
	return []string{"shutdown.target", "reboot.target", "poweroff.target", "halt.target", "kexec.target"}
}

// systemdMatches returns matches for signals of such a job, or of the manager's state.
func systemdMatches() (matches [][]dbus.MatchOption) {
	for _, unit := range stopTargets() {
		for _, member := range []string{"JobNew", "JobRemoved"} {
			matches = append(matches, []dbus.MatchOption{
				dbus.WithMatchSender(systemd), dbus.WithMatchInterface(systemdManager), dbus.WithMatchMember(member), dbus.WithMatchArg(2, unit),
			})
		}
	}
	return append(matches, []dbus.MatchOption{
		dbus.WithMatchSender(systemd), dbus.WithMatchInterface(properties), dbus.WithMatchMember("PropertiesChanged"),
		dbus.WithMatchObjectPath(systemdPath), dbus.WithMatchArg(0, systemdManager),
	}, []dbus.MatchOption{
		dbus.WithMatchSender(busName), dbus.WithMatchInterface(busName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, systemd),
	})
}

// subscribe makes systemd send its signals: it sends none without a subscriber. A failure
// needs no action: checks read systemd's state.
func (b *bus) subscribe() {
	b.conn.Object(systemd, systemdPath).Go(systemdManager+".Subscribe", dbus.FlagNoAutoStart|dbus.FlagNoReplyExpected, nil)
}

// ofSystemd handles a signal, and reports whether it is systemd's and relevant.
func (b *bus) ofSystemd(s *dbus.Signal) bool {
	if s.Sender != b.pid1 || b.pid1 == "" || s.Path != systemdPath {
		return false
	}
	switch s.Name {
	case systemdManager + ".JobNew", systemdManager + ".JobRemoved":
		if len(s.Body) < 3 {
			return false
		}
		unit, ok := s.Body[2].(string)
		if !ok || !slices.Contains(stopTargets(), unit) {
			return false
		}
		if b.removed = s.Name == systemdManager+".JobRemoved"; !b.removed {
			b.jobs = true
		}
		return true
	default:
		return s.Name == properties+".PropertiesChanged" && names(s.Body, "SystemState")
	}
}

// names reports whether a signal of changed properties names property.
func names(body []any, property string) bool {
	if len(body) < 3 {
		return false
	}
	changed, _ := body[1].(map[string]dbus.Variant)
	invalidated, _ := body[2].([]string)
	_, is := changed[property]
	return is || slices.Contains(invalidated, property)
}

// stopping adds systemd's view to a state. If systemd stops the node by itself, the delay is
// the time that it gives a unit to stop: no inhibitor extends it.
func (b *bus) stopping(ctx context.Context, s agent.NodeState) agent.NodeState {
	if s.ShuttingDown {
		s.AtOnce = b.jobs && !b.removed
		return s
	}
	if !b.stops(ctx) {
		return s
	}
	s.Known, s.ShuttingDown, s.AtOnce, s.Delay = true, true, true, b.stopTime
	return s
}

// stops reports whether systemd stops the node. A job proves it. The removal of the job
// proves nothing until systemd's state is read.
func (b *bus) stops(ctx context.Context) bool {
	was := b.pid1
	err := b.call(ctx, busName, "/org/freedesktop/DBus", busName+".GetNameOwner", systemd).Store(&b.pid1)
	if _, answered := errors.AsType[dbus.Error](err); answered { // no systemd
		b.pid1, b.jobs, b.removed = "", false, false
		return false
	}
	if b.pid1 != was {
		b.subscribe()
		b.stopTime = b.timeToStop(ctx)
	}
	if b.jobs && !b.removed {
		return true
	}
	state, known := b.systemState(ctx)
	if known && b.removed {
		b.jobs, b.removed = false, false
	}
	return b.jobs || state == stateStopping
}

// timeToStop asks before the node stops, so that nobody waits for the answer then.
func (b *bus) timeToStop(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	var most uint64
	if err := b.property(ctx, systemd, systemdPath, systemdManager, "DefaultTimeoutStopUSec", &most); err != nil {
		return defaultStop
	}
	return microseconds(most)
}

func (b *bus) systemState(ctx context.Context) (state string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	err := b.property(ctx, systemd, systemdPath, systemdManager, "SystemState", &state)
	return state, err == nil
}

// changed reports whether something has changed that no signal reports.
func (b *bus) changed(ctx context.Context) bool {
	if b.pid1 != "" && !b.jobs {
		if state, _ := b.systemState(ctx); state == stateStopping {
			return true
		}
	}
	if b.logind.Wanted == 0 || b.owner == "" {
		return false
	}
	b.logind.lengthy.skip--
	s, err := b.state(ctx)
	return err != nil || s.Delay < b.logind.Wanted && b.logind.lengthy.due()
}
