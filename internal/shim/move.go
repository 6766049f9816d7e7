package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

const (
	// followInterval is how often to look at a guest that is being sent or is arriving. Each
	// look opens its own connection.
	followInterval = 50 * time.Millisecond
	// progressLooks is how many of these looks are one write of vm.json, if only the
	// progress has changed.
	progressLooks = 5
	// followMost and identifyMost bound the back-off after looks that have failed.
	followMost   = 2 * time.Second
	identifyMost = time.Minute
)

// The reasons why a guest cannot be moved that the shim knows without a monitor.
const (
	noMonitor = "it asks the guest by a command: only one with --ask-with=qmp: can be moved"
	noAnswer  = "QEMU's monitor has not answered yet"
)

// way is where a guest is going, as far as the shim follows it.
type way int

const (
	nowhere way = iota
	sent
	awaited
)

// mover carries out the agent's requests about the guest's migration, one at a time, and
// tells what becomes of it. Each is one connection to the monitor, by a worker.
type mover struct {
	monitor  string // the path of QEMU's monitor socket, "" without one
	incoming bool   // QEMU has to wait for a guest
	sender   *signals.Sender

	now, told signals.Moving // what vm.json has to say, and what it says
	looks     int            // since vm.json was written
	begun     uint64         // the last request that was begun
	way       way
	paused    bool // a request has paused the guest, or found it paused
	stopped   bool // this shim has stopped the guest

	busy    bool
	answers chan answer
	timer   *time.Timer   // of the next look
	wait    time.Duration // before it, after failures
	cancel  context.CancelFunc
	ended   chan struct{} // the worker has ended
}

func newMover(config Config, sender *signals.Sender) *mover {
	m := &mover{monitor: config.Ask.QMP, incoming: config.Incoming, sender: sender, answers: make(chan answer, 1), timer: time.NewTimer(0)}
	m.timer.Stop()
	if config.Ask != (Ask{}) {
		m.now.Able = noMonitor
	}
	if m.monitor != "" {
		m.now.Able = noAnswer
	}
	_ = m.tell() // before vm.json is there it cannot fail
	return m
}

// found begins to ask the monitor, once there is a VM process.
func (m *mover) found() {
	if m.monitor != "" {
		m.start(work{request: grace.MoveRequest{Do: grace.MoveLook}})
	}
}

// look takes the agent's request, if there is a new one.
func (m *mover) look() error {
	if m.busy {
		return nil
	}
	r, err := m.sender.MoveRequested()
	if err != nil || r.Request <= m.begun {
		return err
	}
	m.begun = r.Request
	w := work{request: r}
	err = m.refuse(r.Do)
	if err == nil && (r.Do == grace.MoveMigrate || r.Do == grace.MoveIncoming) {
		w.socket, err = m.sender.ConnectMigration()
	}
	if err != nil {
		m.now.Requested, m.now.Result = r.Request, err.Error()
		return m.tell()
	}
	m.start(w)
	return nil
}

// refuse returns why a request is not worth a connection.
func (m *mover) refuse(do grace.Move) error {
	switch do {
	case grace.MoveLook, grace.MoveCancel, grace.MoveCont:
	case grace.MoveMigrate, grace.MoveIncoming:
		if m.way != nowhere {
			return errors.New("a migration is under way")
		}
	case grace.MovePause:
		if m.way != sent {
			return errors.New("no migration is under way")
		}
	default:
		return fmt.Errorf("this shim cannot %.20q", do)
	}
	if m.monitor == "" {
		return errors.New(noMonitor)
	}
	return nil
}

// wake looks again.
func (m *mover) wake() {
	if m.way == nowhere {
		m.found()
		return
	}
	m.start(work{})
}

func (m *mover) start(w work) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	w.resume = m.way == sent && m.stopped
	m.busy, m.cancel, m.ended = true, cancel, ended
	m.timer.Stop()
	go func() {
		defer close(ended)
		defer cancel()
		m.answers <- w.do(ctx, m.monitor) // there is room: one worker at a time
	}()
}

// done takes a worker's answer.
func (m *mover) done(a answer) error {
	m.busy = false
	if a.request.Request != 0 {
		m.answered(a)
	}
	if a.machine != (signals.Machine{}) {
		m.now.Machine = a.machine
	}
	if a.request.Do == grace.MoveLook {
		m.now.Able = a.able()
	}
	if a.seen {
		m.saw(a.sight)
	}
	m.looks++
	m.next(a)
	return m.tell()
}

func (m *mover) answered(a answer) {
	m.now.Requested, m.now.Result = a.request.Request, signals.ResultOK
	if a.err != nil {
		m.now.Result = a.err.Error()
	}
	switch a.request.Do {
	case grace.MoveMigrate:
		if errors.Is(a.err, errRefused) {
			break // all is as it was; without an answer it may have begun: QEMU says
		}
		m.now.State, m.now.Reason, m.now.Total, m.now.Remaining, m.now.Downtime = signals.StateSetup, "", 0, 0, 0
		m.paused, m.stopped, m.way = false, false, sent
	case grace.MoveIncoming:
		if a.err == nil {
			m.way = awaited
		}
	case grace.MovePause:
		m.paused, m.stopped = a.err == nil, m.stopped || a.stopped
	case grace.MoveCont:
		if a.err == nil {
			m.paused, m.stopped = false, false
			m.goesOn()
		}
	default: // nothing to remember
	}
}

// goesOn takes that a guest runs which had been stopped for its migration.
func (m *mover) goesOn() {
	if m.now.State == signals.StateArrived || m.now.State == signals.StateCompleted {
		m.now.State = signals.StateRunning
	}
}

// saw takes what QEMU says.
func (m *mover) saw(s sight) {
	m.now.Guest = s.word()
	switch {
	case m.way == sent:
		m.now.State, m.now.Reason = s.sending(m.paused)
		m.now.Total, m.now.Remaining, m.now.Downtime = s.Memory.Total, s.Memory.Remaining, s.Downtime
	case s.guest == inMigrate && s.Status != "" && s.Status != "none":
		m.now.State = signals.StateActive
	case s.guest == inMigrate:
		m.now.State = signals.StateSetup
	case m.way == awaited:
		m.now.State = signals.StateArrived
	case m.incoming && m.now.State == signals.StateNone:
		m.now.Able = fmt.Sprintf("QEMU was to wait for a guest, and is %.40q: its command has to take the words of --incoming-args", s.guest)
	}
	switch m.now.State {
	case signals.StateCompleted, signals.StateFailed, signals.StateCancelled, signals.StateArrived:
		m.way = nowhere
	default: // it goes on
	}
}

// next sets when to look again.
func (m *mover) next(a answer) {
	first, most := followInterval, followMost
	if m.way == nowhere {
		first, most = 2*followInterval, identifyMost
		if m.now.Able == signals.AbleOK || m.now.Able == noMonitor {
			m.wait = 0
			return
		}
	}
	if a.seen && m.way != nowhere {
		m.wait = 0
	}
	m.wait = min(max(first, 2*m.wait), most)
	m.timer.Reset(m.wait)
}

// tell writes vm.json if it has to say something else.
func (m *mover) tell() error {
	same := m.told
	same.Total, same.Remaining = m.now.Total, m.now.Remaining
	if m.now == m.told || m.now == same && m.looks < progressLooks {
		return nil
	}
	if err := m.sender.TellMoving(m.now); err != nil {
		return err
	}
	m.told, m.looks = m.now, 0
	return nil
}

// away reports whether the guest was sent, whole.
func (m *mover) away() bool { return m.now.State == signals.StateCompleted }

// close ends the worker. Its answer may be left unread.
func (m *mover) close() {
	m.timer.Stop()
	if m.cancel != nil {
		m.cancel()
		<-m.ended
	}
}

// work is what one connection to the monitor is for: a request, or a look alone.
type work struct {
	request grace.MoveRequest
	socket  *os.File // the agent's, which QEMU gets
	resume  bool     // let the guest run again if its migration has failed
}
