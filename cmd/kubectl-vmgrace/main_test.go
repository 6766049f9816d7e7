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
		{[]string{}, 0}, {[]string{"--help"}, 0}, {[]string{"--version"}, 0}, {[]string{"status", "--help"}, 0}, {[]string{"help", "migrate"}, 0},
		{[]string{"start"}, cli.ExitUsage}, {[]string{"drain"}, cli.ExitUsage}, {[]string{"extend", "vm", "--grace=90s"}, cli.ExitUsage},
		{[]string{"status", "--kubeconfig=/nonexistent"}, cli.ExitFailure},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("%q: exit status %d, want %d", c.args, got, c.want)
		}
	}
}
