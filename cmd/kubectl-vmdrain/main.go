// Command kubectl-vmdrain is kubectl vmdrain: it empties nodes, moves their VMs
// and waits for volumes.
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

// Exit statuses: something is left or failed, wrong usage, interrupted.
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
		<-signals // the second one ends the process at once, however soon it comes
		os.Exit(exitInterrupted)
	}()
	err := command(ctx, args)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	var usage *vmdrain.UsageError
	fmt.Fprintln(os.Stderr, "kubectl vmdrain:", err)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, vmdrain.ErrInterrupted):
		return exitInterrupted
	default:
		return exitFailure
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == vmdrain.CompleteCommand {
		vmdrain.Complete(ctx, args[1:], os.Stdout)
		return nil
	}
	o, err := vmdrain.Parse(args, os.Stdout)
	if err != nil {
		return err
	}
	if o.VersionAsked() {
		fmt.Println("kubectl-vmdrain", version)
		return nil
	}
	return o.Run(ctx, vmdrain.Output{Out: os.Stdout, Err: os.Stderr})
}
