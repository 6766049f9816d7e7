package shim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// askTimeout is how long one request to the guest may take.
const askTimeout = 4 * time.Second

// moveTimeout bounds one connection to the monitor for a migration. It is shorter than
// askTimeout, so that a request to shut down gets its turn after a connection that hangs.
const moveTimeout = 3 * time.Second

func moveDeadline() time.Time { return time.Now().Add(moveTimeout) }

func askDeadline() time.Time { return time.Now().Add(askTimeout) }

// Ask is how to ask the guest to shut down: by QMP or Exec, by QGA, or both; none is the zero value.
type Ask struct {
	QMP  string // the path of QEMU's monitor socket
	Exec string // a command and its arguments
	QGA  string // the path of the socket of the guest agent's channel
}

// maxSocketPath is what fits into sockaddr_un (unix(7)).
const maxSocketPath = 107

// add takes one --ask-with. Of qmp and exec the last one counts, and "" takes back all.
func (a *Ask) add(text string) error {
	how, what, _ := strings.Cut(text, ":")
	what = strings.TrimSpace(what)
	to := map[string]*string{"qmp": &a.QMP, "exec": &a.Exec, "qga": &a.QGA}[how]
	switch {
	case text == "":
		*a = Ask{}
		return nil
	case what == "" || to == nil:
		return fmt.Errorf("--ask-with %.60q: use qmp:SOCKET or exec:COMMAND, and qga:SOCKET beside it", text)
	case how != "exec" && len(what) > maxSocketPath:
		return fmt.Errorf("--ask-with %s: a socket's path has at most %d bytes", how, maxSocketPath)
	}
	if how != "qga" {
		a.QMP, a.Exec = "", ""
	}
	*to = what
	return nil
}

var errAskTimeout = fmt.Errorf("no answer in %v", askTimeout)

// asker carries out the agent's requests to ask the guest, one at a time; a request that
// comes meanwhile waits. If libvirt asks the guest it has nothing to do.
type asker struct {
	how    Ask
	sender *signals.Sender
	pid    int // of the VM process, 0 while it is not known

	asked   uint64 // the last request that was begun
	busy    bool
	command int        // a command that was started
	results chan error // of QMP
	timer   *time.Timer
	monitor *powerRequest // the last one; it waits for the guest's end
}

func newAsker(how Ask, sender *signals.Sender) *asker {
	a := &asker{how: how, sender: sender, results: make(chan error, 1), timer: time.NewTimer(0)}
	a.timer.Stop()
	return a
}

func (a *asker) asks() bool { return a.how != Ask{} }

// look takes the agent's request, if there is a new one.
func (a *asker) look() error {
	if a.busy || a.pid == 0 {
		return nil
	}
	n, by, err := a.sender.Requested()
	if err != nil || n <= a.asked {
		return err
	}
	a.asked, a.busy = n, true
	a.timer.Reset(askTimeout)
	switch { // by what there is
	case a.how.QGA == "":
		by = grace.ModeACPI
	case a.how.QMP == "" && a.how.Exec == "":
		by = grace.ModeAgent
	}
	if by == grace.ModeAgent || a.how.Exec == "" {
		a.monitor.close()
		a.monitor = request(a.how, by, askDeadline(), a.results)
		return nil
	}
	if a.command, err = start(strings.Fields(a.how.Exec)); err != nil {
		return a.done(err)
	}
	return nil
}

// ended takes the end of a child.
func (a *asker) ended(pid, status int) error {
	if pid != a.command || pid == 0 {
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

// late gives a request up. It kills the command with all that it has started; the
// monitor's socket has its own time-out.
func (a *asker) late() error {
	if a.command == 0 {
		return nil
	}
	if err := unix.Kill(-a.command, unix.SIGKILL); err != nil {
		return a.done(fmt.Errorf("%w; kill %s: %w", errAskTimeout, a.how.Exec, err))
	}
	return a.done(errAskTimeout)
}

// done sends the answer.
func (a *asker) done(failed error) error {
	a.busy = false
	a.timer.Stop()
	result := signals.ResultOK
	if failed != nil {
		result = failed.Error()
	}
	err := a.sender.Tell(a.pid, a.asked, result)
	return errors.Join(failed, err)
}

// off reports that the guest is off, or has panicked. The agent ends the process.
func (a *asker) off() error {
	guest := a.monitor.guest
	a.monitor.close()
	a.monitor = nil
	return a.sender.TellGuest(guest)
}

// found takes the pid of the VM process.
func (a *asker) found(pid int) error {
	if !a.asks() {
		return nil
	}
	a.pid = pid
	return a.sender.Tell(pid, 0, "")
}
