package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// maxQMP bounds what a monitor may send, events included.
const maxQMP = 256 << 10

var (
	errQMPFlood = errors.New("the monitor says too much")
	errQMPEnd   = errors.New("the monitor has hung up")
	errRefused  = errors.New("refused")
	errNoAnswer = errors.New("no answer in time")
)

// errQMPBusy: QEMU accepts a second connection, but is silent before the first ends.
var errQMPBusy = errors.New(signals.ResultBusy + ": another program holds the QMP socket, which serves one at a time; give the shim a socket of its own")

// offInterval is how often to check a guest that was asked. Each check opens its own
// connection, so that others who share the monitor get a turn.
const offInterval = 250 * time.Millisecond

// powerRequest is a request through QEMU's monitor or to the guest's agent, and the wait for the
// guest's end after it.
type powerRequest struct {
	off    chan struct{} // closed once the guest is off, or has panicked, and QEMU stays
	guest  string        // which of the two, from then on
	cancel context.CancelFunc
	ended  chan struct{}
}

// request makes one request, sends the result, and then waits for the guest's end, if it has a
// monitor to ask.
func request(how Ask, by grace.Mode, deadline time.Time, result chan<- error) *powerRequest {
	ctx, cancel := context.WithCancel(context.Background())
	m := &powerRequest{off: make(chan struct{}), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		var guest string
		var err error
		if by == grace.ModeAgent {
			err = askAgent(ctx, how.QGA, deadline)
		} else {
			guest, err = powerdown(ctx, how.QMP, deadline)
		}
		result <- err // there is room: one request at a time
		for ; err == nil && guest == "" && how.QMP != ""; guest = guestNow(ctx, how.QMP) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(offInterval):
			}
		}
		if guest != "" {
			m.guest = guest
			close(m.off)
		}
	}()
	return m
}

// guestNow asks QEMU whether its guest is off, or has panicked. No answer counts as neither.
func guestNow(ctx context.Context, path string) string {
	q, err := dialQMP(ctx, path, askDeadline())
	if err != nil {
		return ""
	}
	defer q.close()
	status, err := q.status()
	if err != nil {
		return ""
	}
	return endOf(status)
}

// endOf returns what a guest is that hears nothing any more, by QEMU's word for it, "" for others.
func endOf(status string) string {
	switch status {
	case shutdown:
		return signals.GuestOff
	case "guest-panicked":
		return signals.GuestPanicked
	default:
		return ""
	}
}

func (m *powerRequest) guestOff() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.off
}

// close ends the wait. Its last result may be left unread.
func (m *powerRequest) close() {
	if m != nil {
		m.cancel()
		<-m.ended
	}
}

// shutdown is what QEMU calls a guest that is off.
const shutdown = "shutdown"

// powerdown presses the guest's power button through QEMU's monitor. It first resumes a
// guest that a user has paused, and wakes one that sleeps: neither would react. If the
// guest is off already, there is nothing to do.
func powerdown(ctx context.Context, path string, deadline time.Time) (guest string, err error) {
	q, err := dialQMP(ctx, path, deadline)
	if err != nil {
		return "", err
	}
	defer q.close()
	status, err := q.status()
	if err == nil && status == postMigrate {
		status, err = q.stayed()
	}
	if err != nil {
		return "", err
	}
	switch status {
	case shutdown:
		return signals.GuestOff, nil
	case "paused":
		_, err = q.do("cont")
	case "suspended":
		_, err = q.do("system_wakeup")
	case "running", "prelaunch":
	default:
		return endOf(status), fmt.Errorf("the guest cannot hear it: it is %.40q", status)
	}
	if err == nil {
		_, err = q.do("system_powerdown")
	}
	return "", err
}

// stayed returns what a guest does that QEMU has sent, or has failed to send.
func (q *qmp) stayed() (string, error) {
	var s sight
	err := q.look(&s)
	return s.word(), err
}

// status is the first question on a connection.
func (q *qmp) status() (string, error) {
	if _, err := q.next(); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "", errQMPBusy
		}
		return "", q.failed("greeting", err)
	}
	if _, err := q.do("qmp_capabilities"); err != nil {
		return "", err
	}
	return q.guest()
}

func (q *qmp) guest() (string, error) {
	var guest struct {
		Status string `json:"status"`
	}
	err := q.ask(&guest, "query-status", nil)
	return guest.Status, err
}

// qmp is a connection to a monitor.
type qmp struct {
	path    string
	conn    *net.UnixConn
	heard   *io.LimitedReader
	decoder *json.Decoder // of what is heard
	id      int
	release func() bool // of the connection, from its context
}

// message is what the shim reads of a greeting, an event or an answer.
type message struct {
	ID     int             `json:"id"` // 0 if it is no answer
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

func dialQMP(ctx context.Context, path string, deadline time.Time) (*qmp, error) {
	conn, err := (&net.Dialer{Deadline: deadline}).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("QMP: %w", err)
	}
	heard := &io.LimitedReader{R: conn, N: maxQMP}
	q := &qmp{path: path, conn: conn, heard: heard, decoder: json.NewDecoder(heard)}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, errors.Join(q.failed("connect", err), conn.Close())
	}
	q.release = context.AfterFunc(ctx, func() { _ = conn.Close() }) // which ends what waits for it
	return q, nil
}

func (q *qmp) close() {
	q.release()
	_ = q.conn.Close() // nothing is left to be written
}

func (q *qmp) failed(what string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errNoAnswer
	}
	return fmt.Errorf("QMP %s: %s: %w", q.path, what, err)
}

// do runs a command without arguments.
func (q *qmp) do(command string) (json.RawMessage, error) { return q.run(command, nil, nil) }

// run runs a command, with descriptors as rights, and returns its answer.
func (q *qmp) run(command string, arguments any, rights []byte) (json.RawMessage, error) {
	q.id++
	text, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, arguments, q.id})
	if err != nil {
		return nil, q.failed(command, err)
	}
	if _, _, err := q.conn.WriteMsgUnix(append(text, "\r\n"...), rights, nil); err != nil {
		return nil, q.failed(command, err)
	}
	for {
		m, err := q.next()
		switch {
		case err != nil:
			return nil, q.failed(command, err)
		case m.ID != q.id: // an event
		case m.Error != nil:
			return nil, q.failed(command, fmt.Errorf("%w: %.120q", errRefused, m.Error.Desc))
		default:
			return m.Return, nil
		}
	}
}

func (q *qmp) next() (message, error) {
	var m message
	err := q.decoder.Decode(&m)
	switch {
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return m, err
	case q.heard.N <= 0:
		return m, errQMPFlood
	default:
		return m, errQMPEnd
	}
}
