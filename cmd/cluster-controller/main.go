// Command cluster-controller moves VMs, instead of stopping them, when their launcher pods
// are evicted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/cluster"
)

var version = "dev"

// Exit statuses: wrong usage, and everything else that went wrong.
const (
	exitUsage   = 2
	exitFailure = 1
)

func main() {
	// The Deployment sets GOMEMLIMIT to its limit. A tenth of that is for what Go does not count.
	debug.SetMemoryLimit(debug.SetMemoryLimit(-1) / 10 * 9)
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	o, err := cluster.Parse(args, os.Stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "cluster-controller: %v (see cluster-controller --help)\n", err)
		return exitUsage
	case o.Version:
		fmt.Println("cluster-controller", version)
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := o.Run(ctx, o.Logger(os.Stderr)); err != nil {
		fmt.Fprintln(os.Stderr, "cluster-controller:", err)
		return exitFailure
	}
	return 0
}
