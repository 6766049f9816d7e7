package shim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// askTimeout is how long one request to the guest may take.
const askTimeout = 4 * time.Second

func askDeadline() time.Time { return time.Now().Add(askTimeout) }

// Ask is how the guest is asked to shut down: one of the two, or none.
type Ask struct {
	QMP  string // the path of QEMU's monitor socket
	Exec string // a command and its arguments
}

// maxSocketPath is what fits into sockaddr_un (unix(7)).
const maxSocketPath = 107

func parseAsk(text string) (Ask, error) {
	how, what, _ := strings.Cut(text, ":")
	what = strings.TrimSpace(what)
	switch {
	case text == "":
		return Ask{}, nil
	case what == "" || how != "qmp" && how != "exec":
		return Ask{}, fmt.Errorf("--ask-with %.60q: use qmp:SOCKET or exec:COMMAND", text)
	case how == "qmp" && len(what) > maxSocketPath:
		return Ask{}, fmt.Errorf("--ask-with qmp: a socket's path has at most %d bytes", maxSocketPath)
	case how == "qmp":
		return Ask{QMP: what}, nil
	default:
		return Ask{Exec: what}, nil
	}
}

var errAskTimeout = fmt.Errorf("no answer in %v", askTimeout)

// asker carries out the agent's requests, one at a time. A request that comes
// meanwhile is carried out afterwards.
type asker struct {
	how    Ask
	sender *signals.Sender
	pid    int // of the VM process, 0 while it is not known

	status  *hints // of status.json
	asked   uint64 // the last request that was begun
	busy    bool
	command int        // a command that was started
	results chan error // of QMP
	timer   *time.Timer
	monitor *powerRequest // the last one, which waits for the guest's end
}

func newAsker(how Ask, sender *signals.Sender, status *hints) *asker {
	if how == (Ask{}) {
		return nil
	}
	a := &asker{how: how, sender: sender, status: status, results: make(chan error, 1), timer: time.NewTimer(0)}
	a.timer.Stop()
	return a
}

// look takes the agent's request, if there is a new one.
func (a *asker) look() error {
	n, err := a.sender.Requested()
	if err != nil || n <= a.asked || a.busy || a.pid == 0 {
		return err
	}
	a.asked, a.busy = n, true
	a.timer.Reset(askTimeout)
	if a.how.Exec == "" {
		a.monitor.close()
		a.monitor = press(a.how.QMP, askDeadline(), a.results)
		return nil
	}
	if a.command, err = start(strings.Fields(a.how.Exec)); err != nil {
		return a.done(err)
	}
	return nil
}

// ended is told of a child that has ended.
func (a *asker) ended(pid, status int) error {
	if a == nil || pid != a.command || pid == 0 {
		return nil
	}
	a.command = 0
	if !a.busy {
		return nil // it was given up
	}
	if status != 0 {
		return a.done(fmt.Errorf("%s: exit status %d", a.how.Exec, status))
	}
	return a.done(nil)
}

// late gives a request up. The command goes with whatever it has started; the
// monitor's socket has a time-out of its own.
func (a *asker) late() error {
	if a.command == 0 {
		return nil
	}
	if err := unix.Kill(-a.command, unix.SIGKILL); err != nil {
		return a.done(fmt.Errorf("%w; kill %s: %w", errAskTimeout, a.how.Exec, err))
	}
	return a.done(errAskTimeout)
}

// done answers, and has status.json looked at for what was asked for meanwhile.
func (a *asker) done(failed error) error {
	a.busy = false
	a.timer.Stop()
	result := signals.ResultOK
	if failed != nil {
		result = failed.Error()
	}
	err := a.sender.Tell(a.pid, a.asked, result)
	a.status.poke()
	return errors.Join(failed, err)
}

// off tells that the guest is off. The agent ends the process.
func (a *asker) off() error {
	a.monitor.close()
	a.monitor = nil
	return a.sender.TellGuest(signals.GuestOff)
}

// close lets go of the monitor.
func (a *asker) close() {
	if a != nil {
		a.monitor.close()
	}
}

// found is told the pid of the VM process.
func (a *asker) found(pid int) error {
	if a == nil {
		return nil
	}
	a.pid = pid
	return a.sender.Tell(pid, 0, "")
}

// asking is what the asker waits for.
func (s *shim) asking() (result <-chan error, late <-chan time.Time, off <-chan struct{}) {
	if s.asker == nil {
		return nil, nil, nil
	}
	return s.asker.results, s.asker.timer.C, s.asker.monitor.guestOff()
}

// begin registers and finds the VM process. Where the agent has to be told of
// that it comes first.
func (s *shim) begin() (status int, ended bool) {
	if s.asker == nil {
		s.tell()
		return s.find()
	}
	if status, ended = s.find(); !ended {
		s.tell()
	}
	return status, ended
}
