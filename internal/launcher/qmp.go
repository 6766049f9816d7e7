package launcher

import (
	"bytes"
	"errors"
	"fmt"
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
	defer unix.Close(q.fd)              //nolint:errcheck // nothing is left to be written
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
	fd       int
	path     string
	deadline time.Time
	said     int // bytes read so far
	rest     []byte
	id       int
}

func dialQMP(path string, deadline time.Time) (*qmp, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	q := &qmp{fd: fd, path: path, deadline: deadline}
	err = q.bound(unix.SO_SNDTIMEO) // of connect, too
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, q.failed("connect", err)
	}
	return q, nil
}

// bound lets the next call take no longer than there is time.
func (q *qmp) bound(option int) error {
	left := time.Until(q.deadline)
	if left <= 0 {
		return unix.EAGAIN
	}
	timeout := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
	return unix.SetsockoptTimeval(q.fd, unix.SOL_SOCKET, option, &timeout)
}

func (q *qmp) failed(what string, err error) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINPROGRESS) {
		err = errAskTimeout
	}
	return fmt.Errorf("QMP %s: %s: %w", q.path, what, err)
}

// do has a command carried out and returns what it returned.
func (q *qmp) do(command string) (string, error) {
	q.id++
	id := strconv.Itoa(q.id)
	text := `{"execute":"` + command + `","id":` + id + "}\r\n"
	if err := q.write([]byte(text)); err != nil {
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

func (q *qmp) write(text []byte) error {
	for len(text) > 0 {
		if err := q.bound(unix.SO_SNDTIMEO); err != nil {
			return err
		}
		n, err := unix.SendmsgN(q.fd, text, nil, nil, unix.MSG_NOSIGNAL)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		text = text[max(n, 0):]
	}
	return nil
}

func (q *qmp) line() (string, error) {
	var chunk [4096]byte
	for {
		if line, rest, whole := bytes.Cut(q.rest, []byte("\n")); whole {
			q.rest = rest
			return string(line), nil
		}
		if q.said >= maxQMP {
			return "", errQMPFlood
		}
		if err := q.bound(unix.SO_RCVTIMEO); err != nil {
			return "", err
		}
		n, err := unix.Read(q.fd, chunk[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", err
		case n == 0:
			return "", errQMPEnd
		default:
			q.said += n
			q.rest = append(q.rest, chunk[:n]...)
		}
	}
}
