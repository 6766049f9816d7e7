// Command kubectl-vmdrain is the former name of kubectl vmgrace drain.
package main

import (
	"os"

	"github.com/vmgrace/vmgrace/internal/plugin"
	"github.com/vmgrace/vmgrace/internal/plugin/drain"
)

var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	return plugin.Run("kubectl vmdrain", drain.NewCommand("kubectl vmdrain", version, plugin.Standard().Output), args, os.Exit)
}
