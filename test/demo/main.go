// Command demo shows vmgrace at work on three real guests: what happens to a
// guest that is polite, to one that is deaf, and to one whose agent is killed
// in mid-grace. It needs root and leaves nothing behind: make demo.
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
	// A second Ctrl-C ends the program at once; the node then kills what is in it.
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
