// Command launcher-shim is the entrypoint of a launcher container: it turns
// the container runtime's stop signal into a shutdown of the VM.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/vmgrace/vmgrace/internal/logs/writer"
	"github.com/vmgrace/vmgrace/internal/shim"
)

// version is set by the linker (-X main.version=...).
var version = "devel"

// flush is how long the last lines may take.
const flush = 200 * time.Millisecond

func main() {
	caught := shim.Catch() // before anything else: see there
	runtime.GOMAXPROCS(1)  // one goroutine does all: more only wake each other
	debug.SetGCPercent(20) // else what its looks leave grows to 4 MiB before it is collected
	os.Exit(run(caught))
}

func run(caught shim.Signals) int {
	stderr := writer.New(os.Stderr)
	defer stderr.Close(flush)
	config, err := shim.ParseConfig(os.Args[1:], os.Getenv)
	switch {
	case errors.Is(err, shim.ErrHelp):
		return show(shim.Usage)
	case err != nil:
		fmt.Fprintf(stderr, "launcher-shim: %v (see launcher-shim --help)\n", err)
		return 2
	case config.Version:
		return show("launcher-shim " + version + "\n")
	}
	logger := log.New(stderr, "launcher-shim: ", 0)
	stderr.Report(func() {}, func(n int) { logger.Printf("%d log lines were dropped: standard error was not read", n) })
	return shim.Run(config, caught, logger)
}

func show(text string) int {
	if _, err := os.Stdout.WriteString(text); err != nil {
		return 1
	}
	return 0
}
