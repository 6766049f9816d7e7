// Command demo shows how vmgrace shuts down three real guests: one that powers off when
// asked, one that ignores every request, and one whose agent is killed in its grace period.
// make demo runs it. It needs root and leaves nothing behind.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once; the node then kills its processes.
	context.AfterFunc(ctx, stop)
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	var out screen = &lines{w: os.Stdout}
	if err == nil {
		out = &live{w: os.Stdout, width: int(size.Col)}
	}
	ok := run(ctx, out)
	stop()
	if !ok {
		os.Exit(1)
	}
}
