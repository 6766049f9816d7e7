// Command kubectl-vmgrace is the kubectl plugin vmgrace: it shows VMs, shuts them down, moves
// them, and drains nodes.
package main

import (
	"os"

	"github.com/vmgrace/vmgrace/internal/plugin"
)

var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	return plugin.Run("kubectl vmgrace", plugin.NewCommand(version, plugin.Standard()), args, os.Exit)
}
