// Command node-agent runs on each node and gives its VMs their grace period.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/logs/writer"
	"github.com/vmgrace/vmgrace/internal/node"
)

var version = "dev"

// Exit statuses: wrong usage, and everything else that went wrong.
const (
	exitUsage   = 2
	exitFailure = 1
)

// gcPercent is low because an idle agent makes hardly any garbage. So nothing would
// trigger the collection of what its start left.
const gcPercent = 25

// flush is how long the last lines may take.
const flush = 200 * time.Millisecond

func main() {
	debug.SetGCPercent(gcPercent)
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Catch and ignore SIGPIPE: a log without a reader must not end the agent.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stderr := writer.New(os.Stderr)
	defer stderr.Close(flush)
	var usage *node.UsageError
	err := command(ctx, args, stderr)
	switch {
	case err == nil || errors.Is(err, pflag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "node-agent:", err)
		return exitUsage
	default:
		fmt.Fprintln(stderr, "node-agent:", err)
		return exitFailure
	}
}

func command(ctx context.Context, args []string, stderr *writer.Writer) error {
	if len(args) > 0 && args[0] == "status" {
		return node.Status(args[1:], os.Stdout, os.Stderr)
	}
	o, err := node.Parse(args, os.Stdout)
	if err != nil {
		return err
	}
	if o.VersionAsked() {
		fmt.Println("node-agent", version)
		return nil
	}
	return o.Run(ctx, stderr)
}
