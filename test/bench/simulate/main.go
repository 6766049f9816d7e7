// Command simulate is the agent in a process of its own, as node-agent runs
// it, but on a simulated hypervisor: domains and QEMUs exist only in here.
// Clock, grace cache, launcher directories, their shims, log and metrics are
// real. Row d of the bench reads what it costs.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
)

func main() {
	debug.SetGCPercent(25) // as cmd/node-agent does
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// run says "guarded" once every VM is, and when ctx ends, by how many
// nanoseconds after its deadline each was signalled.
func run(ctx context.Context, args []string, out io.Writer, log *slog.Logger) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: simulate STATE-DIR LAUNCHERS-DIR VMS")
	}
	vms, err := strconv.Atoi(args[2])
	if err != nil {
		return fmt.Errorf("how many VMs: %w", err)
	}
	h, err := newHost(args[0], args[1], log)
	if err != nil {
		return err
	}
	h.start(vms)
	running := make(chan error, 1)
	go func() { running <- h.run(ctx) }()
	select {
	case <-h.store.guarded:
		fmt.Fprintln(out, "guarded")
	case err := <-running:
		return err
	}
	if err := <-running; err != nil {
		return err
	}
	late, err := h.late()
	for _, d := range late {
		fmt.Fprintln(out, d.Nanoseconds())
	}
	return err
}
