// Command floor is the program that vmgrace is measured against. It does each job with the
// fewest system calls, without state, safety or features. It is also written in Go, so both
// sides have the costs of the start of the Go runtime.
package main

import (
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("which job: shim, read, react, ask, kill, timers")
	}
	switch job, args := args[0], args[1:]; {
	case job == "shim" && len(args) == 1:
		return shim(args[0])
	case job == "read" && len(args) == 1:
		return read(args[0])
	case job == "react" && len(args) == 3:
		return react(args[0], args[1], args[2])
	case job == "ask" && len(args) > 1 && len(args)%2 == 1:
		return askAll(args[0], args[1:])
	case job == "kill" && len(args) > 1:
		n, err := numbers(args)
		if err != nil {
			return err
		}
		return kill(n[0], n[1:])
	case job == "timers" && len(args) == 2:
		n, err := numbers(args)
		if err != nil {
			return err
		}
		return timers(n[0], n[1])
	default:
		return fmt.Errorf("no such job: %q with %d arguments", job, len(args))
	}
}

func numbers(args []string) ([]int, error) {
	n := make([]int, 0, len(args))
	for _, a := range args {
		i, err := strconv.Atoi(a)
		if err != nil {
			return nil, fmt.Errorf("not a number: %w", err)
		}
		n = append(n, i)
	}
	return n, nil
}
