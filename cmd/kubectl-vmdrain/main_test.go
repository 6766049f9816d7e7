package main

import (
	"testing"

	"github.com/vmgrace/vmgrace/internal/plugin"
)

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--help"}, 0}, {[]string{"--version"}, 0},
		{[]string{}, plugin.ExitUsage}, {[]string{"--no-such-flag"}, plugin.ExitUsage}, {[]string{"n", "-o", "yaml"}, plugin.ExitUsage},
		{[]string{"n", "--kubeconfig=/nonexistent"}, plugin.ExitFailure},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("%q: exit status %d, want %d", c.args, got, c.want)
		}
	}
}
