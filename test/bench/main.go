// Command bench measures vmgrace beside a floor and its peers, and prints one table: make
// bench. The floor is a program of the project (test/bench/floor) that does a job with the
// fewest system calls. All figures of a row are measured in turns, in one run on one
// machine. Only their ratios mean something on other machines. The bench needs root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	o := options{}
	rows := ""
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", "bin", "where node-agent, launcher-shim, cluster-controller and floor are")
	f.StringVar(&o.dir, "dir", "/var/tmp", "a directory on the disk that is measured")
	f.StringVar(&o.out, "out", "", "the page to write; empty = stdout")
	f.StringVar(&rows, "rows", "", "which rows, "+strings.Join(letters(), ",")+"; empty = all")
	f.IntVar(&o.rounds, "rounds", 5, "how often each figure is taken")
	f.IntVar(&o.guests, "guests", 100, "real guests of row c; rows a and f have twice as many")
	f.IntVar(&o.polite, "polite", 50, "real guests of rows b and m")
	f.IntVar(&o.vmis, "vmis", 10000, "VMIs with launcher pods of row k")
	f.IntVar(&o.crowd, "crowd", 20000, "VMIs with launcher pods of row p, on a quarter as many nodes")
	f.IntVar(&o.records, "records", 1000, "records of row e")
	f.DurationVar(&o.idle, "idle", idleTime, "how long row f looks at an idle agent")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if rows != "" {
		o.rows = strings.Split(rows, ",")
	}
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 2
	}
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}
