// Command drain shows how a drain moves a VM: it makes a cluster of two nodes, applies
// deploy/examples/vm.yaml and drains the VM's node. make demo-drain runs it. It needs root, and ends
// all that it has started.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once; the kernel then kills the cluster.
	context.AfterFunc(ctx, stop)
	r, err := run(ctx, &screen{w: os.Stdout})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	text, ok := r.table()
	fmt.Print("\n", text)
	if !ok {
		os.Exit(1)
	}
}
