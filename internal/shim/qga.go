package shim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

const (
	// maxQGA bounds what a guest's agent may say to one request, in bytes.
	maxQGA = 64 << 10
	// refuseTime is what stays of a request's time for a refusal, once the agent has answered at
	// all: one that shuts down says nothing.
	refuseTime = askTimeout / 2
	// sentinel comes before the first question, and before its answer: what was said before is of
	// an earlier conversation (guest-sync-delimited in QEMU's reference of the guest agent).
	sentinel = 0xff
)

var (
	errNoAgent      = errors.New("no guest agent answers, or another program holds its socket")
	errGuestRefuses = errors.New(signals.ResultRefused)
)

// askAgent asks the guest's agent to shut the guest down. First it thaws file systems that are
// frozen: while they are, the agent refuses all else.
func askAgent(ctx context.Context, path string, deadline time.Time) error {
	conn, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	defer func() { _ = conn.Close() }()                         // nothing is left to be said
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // which ends what waits for it
	a := &qga{conn, bufio.NewReader(io.LimitReader(conn, maxQGA))}
	if err := errors.Join(conn.SetDeadline(deadline.Add(-refuseTime)), a.sync(deadline.UnixMilli())); err != nil {
		return fmt.Errorf("guest agent: %w: %w", errNoAgent, err)
	}
	if state, _ := a.do("guest-fsfreeze-status"); string(state) == `"frozen"` { // not every agent knows it
		if _, err := a.do("guest-fsfreeze-thaw"); err != nil {
			return err
		}
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	if _, err = a.do("guest-shutdown"); errors.Is(err, errGuestRefuses) {
		return err
	}
	return nil // it does not answer, or is gone already
}

// qga is a conversation with a guest's agent.
type qga struct {
	net.Conn
	heard *bufio.Reader
}

// sync finds the beginning of the conversation.
func (a *qga) sync(id int64) error {
	if _, err := fmt.Fprintf(a, "%s{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":%d}}\n", []byte{sentinel}, id); err != nil {
		return err
	}
	for {
		if _, err := a.heard.ReadBytes(sentinel); err != nil {
			return err
		}
		if is, err := a.answer(); err != nil || string(is) == fmt.Sprint(id) {
			return err
		}
	}
}

func (a *qga) do(command string) (json.RawMessage, error) {
	if _, err := fmt.Fprintf(a, "{\"execute\":%q}\n", command); err != nil {
		return nil, fmt.Errorf("guest agent: %s: %w", command, err)
	}
	return a.answer()
}

func (a *qga) answer() (json.RawMessage, error) {
	text, err := a.heard.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("guest agent: %w", err)
	}
	if m.Error != nil {
		return nil, fmt.Errorf("%w%s", errGuestRefuses, m.Error.Desc)
	}
	return m.Return, nil
}
