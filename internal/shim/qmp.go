package shim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// maxQMP bounds what a monitor may say: events are counted, too.
const maxQMP = 256 << 10

var (
	errQMPFlood = errors.New("the monitor says too much")
	errQMPEnd   = errors.New("the monitor has hung up")
)

// errQMPBusy: QEMU takes a second connection, and says nothing before the first ends.
var errQMPBusy = errors.New(signals.ResultBusy + ": another program holds the QMP socket, which serves one at a time; give the shim a socket of its own")

// offInterval is how often a guest that was asked is looked at. Each look is a
// connection of its own: whoever shares the monitor gets a turn.
const offInterval = 250 * time.Millisecond

// powerRequest is a request by QEMU's monitor, and the wait for the guest's end after it.
type powerRequest struct {
	off    chan struct{} // closed once the guest is off and QEMU stays
	cancel context.CancelFunc
	ended  chan struct{}
}

// press presses the power button once, says in result what came of it, and then
// waits for the guest's end.
func press(path string, deadline time.Time, result chan<- error) *powerRequest {
	ctx, cancel := context.WithCancel(context.Background())
	m := &powerRequest{off: make(chan struct{}), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		off, err := powerdown(ctx, path, deadline)
		result <- err // there is room: one request at a time
		for ; err == nil && !off; off = isOff(ctx, path) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(offInterval):
			}
		}
		if off {
			close(m.off)
		}
	}()
	return m
}

// isOff asks QEMU whether its guest is off. One that does not answer has not said so.
func isOff(ctx context.Context, path string) bool {
	q, err := dialQMP(ctx, path, askDeadline())
	if err != nil {
		return false
	}
	defer q.close()
	status, err := q.status()
	return err == nil && status == shutdown
}

func (m *powerRequest) guestOff() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.off
}

// close ends it. Its last result may be left unread.
func (m *powerRequest) close() {
	if m != nil {
		m.cancel()
		<-m.ended
	}
}

// shutdown is what QEMU calls a guest that is off.
const shutdown = `"shutdown"`

// powerdown presses the guest's power button by QEMU's monitor. A guest that a
// user has paused is let run first, one that sleeps is woken: neither would
// hear it. Of one that is off already there is nothing to do.
func powerdown(ctx context.Context, path string, deadline time.Time) (off bool, err error) {
	q, err := dialQMP(ctx, path, deadline)
	if err != nil {
		return false, err
	}
	defer q.close()
	status, err := q.status()
	if err != nil {
		return false, err
	}
	switch status {
	case shutdown:
		return true, nil
	case `"paused"`:
		_, err = q.do("cont")
	case `"suspended"`:
		_, err = q.do("system_wakeup")
	case `"running"`, `"prelaunch"`:
	default:
		return false, fmt.Errorf("the guest cannot hear it: it is %.40s", status)
	}
	if err == nil {
		_, err = q.do("system_powerdown")
	}
	return false, err
}

// status is the first thing that is asked on a connection.
func (q *qmp) status() (string, error) {
	if _, err := q.line(); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "", errQMPBusy
		}
		return "", q.failed("greeting", err)
	}
	if _, err := q.do("qmp_capabilities"); err != nil {
		return "", err
	}
	state, err := q.do("query-status")
	return signals.Members(state)["status"], err
}

// qmp is a connection to a monitor. Package net would be 0.7 MB of program.
type qmp struct {
	conn    *os.File
	heard   *io.LimitedReader
	lines   *bufio.Reader // of what is heard
	id      int
	release func() bool // of the connection, from its context
}

func (q *qmp) close() {
	q.release()
	_ = q.conn.Close() // nothing is left to be written
}

func dialQMP(ctx context.Context, path string, deadline time.Time) (*qmp, error) {
	// Non-blocking, so that the runtime's poller waits and knows deadlines.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	q := &qmp{conn: os.NewFile(uintptr(fd), path)}
	q.heard = &io.LimitedReader{R: q.conn, N: maxQMP}
	q.lines = bufio.NewReader(q.heard)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	if err == nil {
		err = q.conn.SetDeadline(deadline)
	}
	if err != nil {
		return nil, errors.Join(q.failed("connect", err), q.conn.Close())
	}
	q.release = context.AfterFunc(ctx, func() { _ = q.conn.Close() }) // which ends what waits for it
	return q, nil
}

func (q *qmp) failed(what string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errAskTimeout
	}
	return fmt.Errorf("QMP %s: %s: %w", q.conn.Name(), what, err)
}

// do has a command carried out and returns what it returned.
func (q *qmp) do(command string) (string, error) {
	q.id++
	id := strconv.Itoa(q.id)
	if _, err := q.conn.WriteString(`{"execute":"` + command + `","id":` + id + "}\r\n"); err != nil {
		return "", q.failed(command, err)
	}
	for {
		line, err := q.line()
		if err != nil {
			return "", q.failed(command, err)
		}
		answer := signals.Members(line)
		if answer["id"] != id {
			continue // an event
		}
		if failure, is := answer["error"]; is {
			return "", q.failed(command, fmt.Errorf("refused: %.120s", signals.Members(failure)["desc"]))
		}
		return answer["return"], nil
	}
}

func (q *qmp) line() (string, error) {
	line, err := q.lines.ReadString('\n')
	switch {
	case !errors.Is(err, io.EOF):
		return line, err
	case q.heard.N <= 0:
		return "", errQMPFlood
	default:
		return "", errQMPEnd
	}
}
