// Command kubectl-vmgrace is the kubectl plugin vmgrace: it shows VMs, shuts them down, moves
// them, and drains nodes.
package main

import (
	"os"

	"github.com/vmgrace/vmgrace/internal/cli"
)

var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	return cli.Run("kubectl vmgrace", cli.NewCommand(version, cli.Standard()), args, os.Exit)
}
