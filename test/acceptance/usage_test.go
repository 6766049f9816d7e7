package acceptance

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// run runs a binary that must end by itself.
func run(t *testing.T, name string, args ...string) (code int, out, errOut string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func TestBadUsageOfTheAgentIsOneClearLine(t *testing.T) {
	bin := node.Binary(t, "node-agent")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dirs := []string{"--standalone", "--metrics-address=", "--state-dir=" + filepath.Join(t.TempDir(), "state"), "--launchers-dir=" + t.TempDir()}
	for _, c := range []struct {
		name, say string
		code      int
		args      []string
	}{
		{"unknown flag", "--help", 2, []string{"--nonsense"}},
		{"unwritable state directory", "--state-dir", 1, append(dirs, "--state-dir="+file+"/state")},
		{"no launchers directory", "mkdir -p", 1, append(dirs, "--launchers-dir=/no/such/dir")},
		{"address that cannot be had", "--metrics-address", 1, append(dirs, "--metrics-address=192.0.2.1:1")},
	} {
		code, _, said := run(t, bin, c.args...)
		if code != c.code || strings.Count(said, "\n") != 1 || !strings.Contains(said, c.say) {
			t.Errorf("%s: exit status %d, want %d, in one line that names %s:\n%s", c.name, code, c.code, c.say, said)
		}
	}
	for _, flag := range []string{"--help", "--version"} {
		if code, out, said := run(t, bin, flag); code != 0 || out == "" || said != "" {
			t.Errorf("%s: exit status %d, %q, %q", flag, code, out, said)
		}
	}
}

func TestWithoutLibvirtsClientLibraryTheAgentSaysWhatToInstall(t *testing.T) {
	bin := node.Binary(t, "node-agent")
	libs, err := filepath.Glob("/usr/lib/*/libvirt.so.0*")
	if err != nil || len(libs) == 0 {
		t.Fatal("where is libvirt.so.0?", err)
	}
	// The agent runs in its own mount namespace, in which the library is hidden.
	script := `for l in "$@"; do mount --bind /dev/null "$l"; done; exec "$AGENT" --standalone --metrics-address= --state-dir="$STATE" --launchers-dir=/tmp`
	t.Setenv("AGENT", bin)
	t.Setenv("STATE", t.TempDir())
	code, _, said := run(t, "unshare", append([]string{"-m", "sh", "-c", script, "sh"}, libs...)...)
	if code != 1 || strings.Count(said, "\n") != 1 || !strings.Contains(said, "libvirt0") {
		t.Errorf("exit status %d, want 1, in one line that names the package:\n%s", code, said)
	}
}
