package logind

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/vmgrace/vmgrace/pkg/durable"
)

const (
	dropInDir  = "etc/systemd/logind.conf.d"
	dropInName = "99-vmgrace.conf" // behind kubelet's 99-kubelet.conf
	systemd    = "org.freedesktop.systemd1"
)

// dropIn writes the drop-in in dir that has logind delay for longer, and has systemd send
// logind the SIGHUP that it reads it on, within ctx: shutdowns are to be heard of meanwhile.
func dropIn(ctx context.Context, conn *dbus.Conn, dir string, write func() error) error {
	if err := durable.Within(ctx, "the disk", write); err != nil {
		return fmt.Errorf("logind's drop-in: %w", err)
	}
	call := conn.Object(systemd, "/org/freedesktop/systemd1").
		CallWithContext(ctx, systemd+".Manager.KillUnit", dbus.FlagNoAutoStart, "systemd-logind.service", "all", int32(1))
	if call.Err != nil {
		return fmt.Errorf("%s is written, but systemd cannot have logind read it (restart logind): %w", filepath.Join(dir, dropInName), call.Err)
	}
	return nil
}

func writeDropIn(dir string, delay time.Duration) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as systemd's own
		return err
	}
	seconds := (delay + time.Second - 1) / time.Second
	text := fmt.Sprintf("# Written by vmgrace's node-agent (--node-shutdown-timeout).\n[Login]\nInhibitDelayMaxSec=%d\n", seconds)
	return durable.Real().WriteFile(dir, dropInName, []byte(text), 0o644)
}
