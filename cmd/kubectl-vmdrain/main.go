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

	"github.com/spf13/pflag"

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
	if len(args) > 0 && args[0] == vmdrain.CompleteCommand {
		vmdrain.Complete(ctx, args[1:], os.Stdout)
		return 0
	}
	o, err := vmdrain.Parse(args, os.Stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "kubectl vmdrain: %v (see kubectl vmdrain --help)\n", err)
		return exitUsage
	case o.Version:
		fmt.Println("kubectl-vmdrain", version)
		return 0
	}
	err = o.Run(ctx, vmdrain.Output{Out: os.Stdout, Err: os.Stderr})
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "kubectl vmdrain:", err)
	if errors.Is(err, vmdrain.ErrInterrupted) {
		return exitInterrupted
	}
	return exitFailure
}
