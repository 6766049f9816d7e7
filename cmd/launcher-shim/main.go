// Command launcher-shim is the entrypoint of a launcher container: it turns
// the container runtime's stop signal into a shutdown of the VM.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/vmgrace/vmgrace/internal/launcher"
)

// version is set by the linker (-X main.version=...).
var version = "devel"

func main() {
	caught := launcher.Catch() // before anything else: see there
	os.Exit(run(caught))
}

func run(caught launcher.Signals) int {
	config, err := launcher.ParseConfig(os.Args[1:], os.Getenv)
	switch {
	case errors.Is(err, launcher.ErrHelp):
		return show(launcher.Usage)
	case err != nil:
		fmt.Fprintf(os.Stderr, "launcher-shim: %v (see launcher-shim --help)\n", err)
		return 2
	case config.Version:
		return show("launcher-shim " + version + "\n")
	}
	out := launcher.NewOutput(os.Stderr)
	defer out.Close(200 * time.Millisecond)
	return launcher.Run(config, caught, log.New(out, "launcher-shim: ", 0))
}

func show(text string) int {
	if _, err := os.Stdout.WriteString(text); err != nil {
		return 1
	}
	return 0
}
