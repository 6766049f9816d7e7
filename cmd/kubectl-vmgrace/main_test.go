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
		{[]string{}, 0}, {[]string{"--help"}, 0}, {[]string{"--version"}, 0}, {[]string{"status", "--help"}, 0}, {[]string{"help", "migrate"}, 0},
		{[]string{"start"}, plugin.ExitUsage}, {[]string{"drain"}, plugin.ExitUsage}, {[]string{"extend", "vm", "--grace=90s"}, plugin.ExitUsage},
		{[]string{"status", "--kubeconfig=/nonexistent"}, plugin.ExitFailure},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("%q: exit status %d, want %d", c.args, got, c.want)
		}
	}
}
