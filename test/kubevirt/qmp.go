package kubevirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// patience bounds one command to a QEMU.
const patience = 5 * time.Second

// execute runs one command on a monitor and stores what it returns.
func execute(ctx context.Context, monitor, command string, arguments map[string]any, into any) error {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", monitor)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience)) // fails only on a closed connection
	answers := json.NewDecoder(conn)
	if err := answers.Decode(&struct{}{}); err != nil {
		return fmt.Errorf("%s: greeting: %w", command, err)
	}
	if err := ask(conn, answers, "qmp_capabilities", nil, nil); err != nil {
		return err
	}
	return ask(conn, answers, command, arguments, into)
}

func ask(to io.Writer, answers *json.Decoder, command string, arguments map[string]any, into any) error {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(to).Encode(request); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		switch err := answers.Decode(&answer); {
		case err != nil:
			return fmt.Errorf("%s: %w", command, err)
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", command, answer.Error.Desc)
		case answer.Return == nil: // an event
		case into == nil:
			return nil
		default:
			return json.Unmarshal(answer.Return, into)
		}
	}
}

// run returns QEMU's run state.
func run(ctx context.Context, monitor string) (string, error) {
	var is struct{ Status string }
	err := execute(ctx, monitor, "query-status", nil, &is)
	return is.Status, err
}

// quit ends a QEMU, which may be quicker than its answer.
func quit(ctx context.Context, monitor string) error {
	if err := execute(ctx, monitor, "quit", nil, nil); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
