// Command standin is one of KubeVirt's components in the tests' cluster: the package
// test/kubevirt says what it does.
//
//	standin virt-controller IMAGE | virt-handler NODE PODS | virt-api
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/vmgrace/vmgrace/test/kubevirt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	switch {
	case len(args) == 2 && args[0] == "virt-controller":
		return kubevirt.RunController(ctx, log, args[1])
	case len(args) == 3 && args[0] == "virt-handler":
		return kubevirt.RunHandler(ctx, log, args[1], args[2])
	case len(args) == 1 && args[0] == "virt-api":
		return kubevirt.RunAPI(ctx, log)
	}
	return fmt.Errorf("unknown role %q", args)
}
