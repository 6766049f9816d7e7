// Command kubectl-vmdrain is the kubectl plugin vmdrain: it drains nodes, waits for the
// migration of their VMs and for their volumes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/vmgrace/vmgrace/internal/vmdrain"
)

var version = "dev"

// Exit statuses: not drained, wrong usage, interrupted.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		cancel()
		<-signals // a second signal ends the process at once
		os.Exit(exitInterrupted)
	}()
	cmd := vmdrain.NewCommand(version, vmdrain.Output{Out: os.Stdout, Err: os.Stderr})
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "kubectl vmdrain:", err)
	switch {
	case errors.Is(err, vmdrain.ErrUsage):
		return exitUsage
	case errors.Is(err, vmdrain.ErrInterrupted):
		return exitInterrupted
	default:
		return exitFailure
	}
}
