package logind

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/godbus/dbus/v5"
)

// isAnswer: somebody has answered, with an error.
func isAnswer(err error) bool {
	var answer dbus.Error
	return errors.As(err, &answer)
}

func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// connect dials with a bound: a bus that takes connections and says nothing must not
// hang this for ever.
func connect(ctx context.Context, socket string) (*dbus.Conn, error) {
	dialer := net.Dialer{Timeout: callTimeout}
	stream, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("the system bus: %w", err)
	}
	unixConn, ok := stream.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the system bus %s is no unix socket", socket), stream.Close())
	}
	slow := time.AfterFunc(callTimeout, func() { _ = stream.Close() })
	conn, err := dbus.ConnectUnix(unixConn, dbus.WithContext(ctx))
	if err != nil {
		slow.Stop()
		return nil, errors.Join(fmt.Errorf("the system bus %s: %w", socket, err), stream.Close())
	}
	if !slow.Stop() {
		return nil, errors.Join(fmt.Errorf("the system bus %s took too long", socket), conn.Close())
	}
	return conn, nil
}
