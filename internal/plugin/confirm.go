package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/vmgrace/vmgrace/internal/plugin/drain"
	"github.com/vmgrace/vmgrace/internal/plugin/terminal"
)

// errDeclined means that the user did not confirm.
var errDeclined = errors.New("nothing was done")

// confirm asks the user, and fails if the answer is not yes.
func (s *session) confirm(ctx context.Context, question string) error {
	fmt.Fprint(s.Out, terminal.Line(question))
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be cancelled; the process ends
		line, err := bufio.NewReader(s.In).ReadString('\n')
		if err != nil && line == "" {
			line = "no answer"
		}
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.Out)
		return drain.Interrupted(ctx, ctx.Err())
	case line := <-answer:
		switch line {
		case "y", "yes":
			return nil
		case "no answer":
			fmt.Fprintln(s.Out)
			return fmt.Errorf("%w: nobody can answer here; say --yes", errDeclined)
		}
		return errDeclined
	}
}

const onlyShortened = "a grace period can only be shortened: once the shutdown has begun its deadline is fixed on the node's disk, and kubelet kills the launcher pod after the pod's own grace period, which nobody can extend"

func newExtend() *subcommand {
	return &subcommand{
		use: "extend VM", short: "Refused: a grace period can only be shortened", connection: newConnection(),
		long: "This command always fails: " + onlyShortened + ".\nChange spec.terminationGracePeriodSeconds of the VirtualMachineInstance before the shutdown.",
		examples: `  # What can be done before the shutdown; counts for launcher pods made later
  kubectl patch vmi vm-1 --type=merge -p '{"spec":{"terminationGracePeriodSeconds":90}}'`,
		flags: func(f *pflag.FlagSet) { f.Duration("grace", 0, "has no effect") },
		check: func([]string) error { return errors.New("extend is refused: " + onlyShortened) },
	}
}
