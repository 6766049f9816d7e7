// Package logind delays the node's shutdown with an inhibitor of systemd-logind, or of
// elogind, and learns of shutdowns from it (org.freedesktop.login1(5),
// https://systemd.io/INHIBITOR_LOCKS).
//
// The inhibitor is a file descriptor. logind goes on with a shutdown when it is closed, also
// by the end of the process, or when InhibitDelayMaxSec is over. During a shutdown logind
// gives no new one.
package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/internal/node/agent"
)

// DefaultSocket is where the system bus listens.
const DefaultSocket = "/run/dbus/system_bus_socket"

const (
	callTimeout = 5 * time.Second
	// retryInterval is how often a lost bus, or a refused inhibitor, is tried again.
	retryInterval = 5 * time.Second
	// checkInterval is how often the agent checks what no signal reports: the delay, which
	// another drop-in may have shortened, and systemd's state.
	checkInterval = time.Minute
	busName       = "org.freedesktop.DBus"
	name          = "org.freedesktop.login1"
	path          = "/org/freedesktop/login1"
	manager       = name + ".Manager"
)

// Logind implements agent.Inhibitor.
type Logind struct {
	// Socket of the system bus.
	Socket string
	Log    *slog.Logger
	// Wanted is how long logind is to delay. If its own delay is shorter, the agent writes a
	// drop-in below Root, the node's root directory.
	Wanted time.Duration
	Root   string

	held atomic.Pointer[os.File]

	logged  string // only Watch uses these
	lengthy lengthy
	retry   time.Duration // for tests; 0 = retryInterval
	check   time.Duration // for tests; 0 = checkInterval
}

// Release implements agent.Inhibitor.
func (l *Logind) Release() { l.take(nil) }

// take replaces the inhibitor, and closes the old one only then: in between the node would
// not wait.
func (l *Logind) take(f *os.File) {
	if old := l.held.Swap(f); old != nil {
		_ = old.Close() // nothing was written
	}
}

func (l *Logind) holds() bool { return l.held.Load() != nil }

// Watch implements agent.Inhibitor. Bus and logind may come and go: a held inhibitor stays
// held, and Watch takes another one when they are back.
func (l *Logind) Watch(ctx context.Context, report func(agent.NodeState)) {
	defer l.Release()
	for {
		err := l.session(ctx, report)
		if ctx.Err() != nil {
			return
		}
		report(agent.NodeState{Held: l.holds()})
		l.logOnce(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(l.retry, retryInterval)):
		}
	}
}

func (l *Logind) logOnce(err error) {
	if err.Error() != l.logged {
		l.logged = err.Error()
		l.Log.Warn("shutdowns of this node are not delayed: a reboot may cut grace periods short; everything else works", "err", err)
	}
}

var errSilent = errors.New("it takes connections and does not answer")

// session is one connection to the bus.
func (l *Logind) session(ctx context.Context, report func(agent.NodeState)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(callTimeout, func() { cancel(errSilent) })
	conn, err := dbus.Connect("unix:path="+dbus.EscapeBusAddressValue(l.Socket), dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("the system bus %s: %w", l.Socket, cmp.Or(context.Cause(ctx), err))
	}
	defer func() { _ = conn.Close() }() // only its end matters
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	for _, match := range append(systemdMatches(), [][]dbus.MatchOption{
		{dbus.WithMatchSender(name), dbus.WithMatchInterface(manager), dbus.WithMatchMember("PrepareForShutdown")},
		{
			dbus.WithMatchSender(name), dbus.WithMatchInterface(properties), dbus.WithMatchMember("PropertiesChanged"),
			dbus.WithMatchObjectPath(path), dbus.WithMatchArg(0, manager),
		},
		{dbus.WithMatchSender(busName), dbus.WithMatchInterface(busName), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, name)},
	}...) {
		if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
			return fmt.Errorf("listen to logind: %w", cmp.Or(context.Cause(ctx), err))
		}
	}
	silent.Stop()
	s := bus{conn: conn, logind: l}
	defer s.stopLengthening()
	for {
		if err := s.look(ctx, report); err != nil {
			return err
		}
		if err := s.wait(ctx, signals); err != nil {
			return err
		}
	}
}

// bus is a connection, and logind's name on it.
type bus struct {
	conn    *dbus.Conn
	logind  *Logind
	owner   string
	refused bool   // the last request for an inhibitor
	down    bool   // a shutdown is believed
	pid1    string // systemd's name on the bus
	// jobs means that systemd has had a job to stop the node, removed that one was removed
	// since.
	jobs, removed bool
	stopTime      time.Duration // how long systemd lets a unit take to stop
	// lengthened tells of the end of the attempt to lengthen the delay; nil while there is none.
	lengthened chan lengthened
	stop       context.CancelFunc
}

// wait returns nil when look has something to do: there is news, a refused inhibitor may be
// granted by now, or a shutdown may have been called off, of which no signal is certain.
func (b *bus) wait(ctx context.Context, signals <-chan *dbus.Signal) error {
	again := time.NewTimer(cmp.Or(b.logind.retry, retryInterval))
	defer again.Stop()
	check := time.NewTicker(cmp.Or(b.logind.check, checkInterval))
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
			if b.refused || b.down {
				return nil
			}
		case got := <-b.lengthened:
			b.took(got)
			return nil
		case <-check.C:
			if b.changed(ctx) {
				return nil
			}
		case got, open := <-signals:
			if !open {
				return errors.New("the connection to the system bus has ended")
			}
			if b.trusted(got) {
				return nil
			}
		}
	}
}

// trusted reports whether a signal is from logind, systemd or the bus: anybody on the bus can
// send this process a signal of any name.
func (b *bus) trusted(s *dbus.Signal) bool {
	switch s.Name {
	case manager + ".PrepareForShutdown":
		return s.Sender == b.owner && s.Path == path
	case properties + ".PropertiesChanged":
		// logind 257 says by this alone that a shutdown was called off.
		return s.Sender == b.owner && s.Path == path && names(s.Body, "ScheduledShutdown") || b.ofSystemd(s)
	case busName + ".NameOwnerChanged":
		return s.Sender == busName
	default:
		return b.ofSystemd(s)
	}
}

// look asks logind for everything, takes an inhibitor if it can, and reports.
func (b *bus) look(ctx context.Context, report func(agent.NodeState)) error {
	b.refused = false
	err := b.call(ctx, busName, "/org/freedesktop/DBus", busName+".GetNameOwner", name).Store(&b.owner)
	if _, answered := errors.AsType[dbus.Error](err); answered { // no logind: a signal tells when it comes
		b.owner = ""
		b.logind.logOnce(fmt.Errorf("there is no logind on the system bus: %w", err))
		state := b.stopping(ctx, agent.NodeState{})
		b.down, state.Held = state.ShuttingDown, b.logind.holds()
		report(state)
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask for logind on the system bus: %w", err)
	}
	state, err := b.state(ctx)
	if err != nil {
		return err
	}
	state = b.stopping(ctx, state)
	if b.down = state.ShuttingDown; b.down {
		b.stopLengthening()
	} else {
		b.hold(ctx)
		state = b.extend(ctx, state)
	}
	state.Held = b.logind.holds()
	report(state)
	return nil
}

func (b *bus) state(ctx context.Context) (agent.NodeState, error) {
	s := agent.NodeState{Known: true}
	var delay uint64
	for property, into := range map[string]any{"InhibitDelayMaxUSec": &delay, "PreparingForShutdown": &s.ShuttingDown} {
		if err := b.property(ctx, name, path, manager, property, into); err != nil {
			return s, err
		}
	}
	s.Delay = microseconds(delay)
	return s, nil
}

func (b *bus) property(ctx context.Context, of, at, iface, property string, into any) error {
	var v dbus.Variant
	if err := b.call(ctx, of, at, properties+".Get", iface, property).Store(&v); err != nil {
		return fmt.Errorf("%s of %s: %w", property, of, err)
	}
	if err := v.Store(into); err != nil {
		return fmt.Errorf("%s of %s: %w", property, of, err)
	}
	return nil
}

func microseconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(maxDelay/time.Microsecond))) * time.Microsecond
}

// maxDelay bounds delays: "infinity" is 2^64-1 µs.
const maxDelay = 100 * 365 * 24 * time.Hour

// call waits for the answer no longer than callTimeout. It does not make the bus start
// anything.
func (b *bus) call(ctx context.Context, to, object, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return b.conn.Object(to, dbus.ObjectPath(object)).CallWithContext(ctx, method, dbus.FlagNoAutoStart, args...)
}
