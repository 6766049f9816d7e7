package main

import "testing"

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--help"}, 0}, {[]string{"--version"}, 0},
		{[]string{}, exitUsage}, {[]string{"--no-such-flag"}, exitUsage}, {[]string{"n", "-o", "yaml"}, exitUsage},
		{[]string{"n", "--kubeconfig=/nonexistent"}, exitFailure},
	} {
		if got := run(c.args); got != c.want {
			t.Errorf("%q: exit status %d, want %d", c.args, got, c.want)
		}
	}
}
