// Command kubectl-vmdrain is the former name of kubectl vmgrace drain.
package main

import (
	"os"

	"github.com/vmgrace/vmgrace/internal/cli"
	"github.com/vmgrace/vmgrace/internal/vmdrain"
)

var version = "dev"

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	return cli.Run("kubectl vmdrain", vmdrain.NewCommand("kubectl vmdrain", version, cli.Standard().Output), args, os.Exit)
}
