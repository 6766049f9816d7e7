package logind

import (
	"context"
	"fmt"
	"os"

	"github.com/godbus/dbus/v5"
)

// hold takes a new inhibitor: nobody can ask whether logind still knows the old one.
func (b *bus) hold(ctx context.Context) {
	f, err := b.inhibit(ctx)
	if err != nil {
		b.refused = true
		b.logind.logOnce(fmt.Errorf("logind gives no inhibitor: %w", err))
		return
	}
	b.logind.take(f)
	b.logind.logged = ""
	b.logind.Log.Info("shutdowns of this node are delayed until its VMs are gone")
}

// inhibit waits for the answer no longer than callTimeout. It closes a later one:
// otherwise nobody would, and logind would delay the next shutdown for its full time.
func (b *bus) inhibit(ctx context.Context) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer := make(chan *dbus.Call, 1)
	b.conn.Object(name, path).Go(manager+".Inhibit", dbus.FlagNoAutoStart, answer,
		"shutdown", "vmgrace node-agent", "VMs get their grace period", "delay")
	select {
	case call := <-answer:
		return inhibitor(call)
	case <-ctx.Done():
		go func() { // ends with the connection
			if f, err := inhibitor(<-answer); err == nil {
				_ = f.Close() // nothing was written
			}
		}()
		return nil, ctx.Err()
	}
}

func inhibitor(call *dbus.Call) (*os.File, error) {
	var fd dbus.UnixFD
	if err := call.Store(&fd); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}
