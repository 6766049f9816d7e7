package shim

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWrongUsageIsOneClearLineAndTwo(t *testing.T) {
	base := []string{"--namespace", "ns", "--name", "vm", "--uid", "u-1"}
	with := func(args ...string) []string { return append(append([]string(nil), base...), args...) }
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--namespace (or $VM_NAMESPACE) is missing"},
		{[]string{"--namespace", "ns", "--pid", "1"}, "--name (or $VM_NAME) is missing"},
		{[]string{"--namespace", "ns", "--name", "vm", "--pid", "1"}, "--uid (or $VM_UID) is missing"},
		{with(), "exactly one of"},
		{with("--"), "exactly one of"},
		{with("--pid", "1", "--pid-file", "/x"), "exactly one of"},
		{with("--pid", "1", "--", "true"), "exactly one of"},
		{with("true"), `unexpected argument "true"`},
		{with("--pid", "1", "true"), `unexpected argument "true"`},
		{with("--pid", "0"), "not the pid"}, {with("--pid", "x"), "not the pid"}, {with("--pid", "-1"), "not the pid"},
		{with("--no-such-flag"), "no-such-flag"},
		{with("--pid"), "needs an argument"},
		{with("--name", "VM", "--pid", "1"), "Kubernetes names"},
		{with("--namespace", "a_b", "--pid", "1"), "Kubernetes names"},
		{with("--name", "../x", "--pid", "1"), "Kubernetes names"},
		{with("--uid", "a b\n", "--pid", "1"), "uid"},
		{with("--grace-period", "-1", "--pid", "1"), "negative"}, {with("--grace-period", "-1s", "--pid", "1"), "negative"},
		{with("--grace-period", "soon", "--pid", "1"), "Go duration"}, {with("--grace-period", "1.5", "--pid", "1"), "Go duration"},
		{with("--grace-period", "9223372036854775808", "--pid", "1"), "at most"},
		{with("--launcher-dir", "", "--pid", "1"), "--launcher-dir"},
		{with("--ask-with", "qmp:/x"), "--ask-with needs"}, {with("--ask-with", "qmp:/x", "--pid", "1"), "--ask-with needs"},
		{with("--ask-with", "ssh:x", "--", "true"), "qmp:SOCKET or exec:COMMAND"},
	} {
		stdout, stderr, code := call(t, nil, c.args...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "--help") {
			t.Errorf("%q: exit status %d, %q%q; want 2 and %q in one line", c.args, code, stdout, stderr, c.want)
		}
	}
	if _, stderr, code := call(t, []string{"VM_GRACE_PERIOD_SECONDS=never"}, with("--pid", "1")...); code != 2 || !strings.Contains(stderr, "$VM_GRACE_PERIOD_SECONDS") {
		t.Errorf("a bad grace period in the environment: %d, %s", code, stderr)
	}
}

func TestHelpAndVersionGoToStdout(t *testing.T) {
	for _, flag := range []string{"--help", "-h"} {
		if stdout, stderr, code := call(t, nil, flag); code != 0 || stderr != "" || !strings.HasPrefix(stdout, "Usage: launcher-shim") {
			t.Errorf("%s: %d, %q, %q", flag, code, stdout, stderr)
		}
	}
	if stdout, stderr, code := call(t, nil, "--version"); code != 0 || stderr != "" || stdout != "launcher-shim v1.2.3-test\n" {
		t.Errorf("--version: %d, %q, %q", code, stdout, stderr)
	}
}

// call runs the shim until it ends.
func call(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the caller checks the exit status
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
