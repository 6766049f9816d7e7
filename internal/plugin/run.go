package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

// Exit statuses: failed, wrong usage, interrupted.
const (
	ExitFailure     = 1
	ExitUsage       = 2
	ExitInterrupted = 130
)

// Standard are the streams of the process.
func Standard() Streams {
	return Streams{Output: drain.Output{Out: os.Stdout, Err: os.Stderr}, In: os.Stdin}
}

// Run executes a command until it ends or a signal cancels it, and returns the exit status. A
// second signal ends the process at once, by exit. name begins the line about an error.
func Run(name string, cmd *cobra.Command, args []string, exit func(status int)) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for range 2 {
			select {
			case <-signals:
			case <-over:
				return
			}
			if ctx.Err() != nil {
				exit(ExitInterrupted)
			}
			cancel()
		}
	}()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, name+":", err)
	switch {
	case errors.Is(err, drain.ErrUsage):
		return ExitUsage
	case errors.Is(err, drain.ErrInterrupted):
		return ExitInterrupted
	default:
		return ExitFailure
	}
}
