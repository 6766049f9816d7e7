package launcher

import (
	"bufio"
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

// powerdown presses the guest's power button by QEMU's monitor. A guest that a
// user has paused is let run first, one that sleeps is woken: neither would
// hear it.
func powerdown(path string, deadline time.Time) error {
	q, err := dialQMP(path, deadline)
	if err != nil {
		return err
	}
	defer q.conn.Close()                // nothing is left to be written
	if _, err := q.line(); err != nil { // the greeting
		return q.failed("greeting", err)
	}
	if _, err := q.do("qmp_capabilities"); err != nil {
		return err
	}
	state, err := q.do("query-status")
	if err != nil {
		return err
	}
	switch status := signals.Members(state)["status"]; status {
	case `"paused"`:
		_, err = q.do("cont")
	case `"suspended"`:
		_, err = q.do("system_wakeup")
	case `"running"`, `"prelaunch"`:
	default:
		return fmt.Errorf("the guest cannot hear it: it is %.40s", status)
	}
	if err == nil {
		_, err = q.do("system_powerdown")
	}
	return err
}

// qmp is a connection to a monitor. Package net would be 0.7 MB of program.
type qmp struct {
	conn  *os.File
	heard *io.LimitedReader
	lines *bufio.Reader // of what is heard
	id    int
}

func dialQMP(path string, deadline time.Time) (*qmp, error) {
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
