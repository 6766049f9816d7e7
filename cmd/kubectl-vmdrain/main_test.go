package main

import (
	"testing"

	"github.com/vmgrace/vmgrace/internal/cli"
)

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--help"}, 0}, {[]string{"--version"}, 0},
		{[]string{}, cli.ExitUsage}, {[]string{"--no-such-flag"}, cli.ExitUsage}, {[]string{"n", "-o", "yaml"}, cli.ExitUsage},
		{[]string{"n", "--kubeconfig=/nonexistent"}, cli.ExitFailure},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("%q: exit status %d, want %d", c.args, got, c.want)
		}
	}
}
