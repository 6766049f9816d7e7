package node

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/logs/writer"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// An agent without libvirt, and real shims whose VM process is a shell.
func TestAnAgentWithoutLibvirtShutsDownVMsInTheirPods(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "launcher-shim")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/launcher-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o, err := Parse([]string{
		"--standalone", "--libvirt-uri=", "--metrics-address=",
		"--launchers-dir=" + dir, "--state-dir=" + filepath.Join(dir, "state"),
	}, io.Discard)
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	stderr := writer.New(t.Output())
	go func() { ended <- o.Run(ctx, stderr) }()
	t.Cleanup(func() {
		cancel()
		kit.Must(t, <-ended)
		stderr.Close(time.Second)
	})
	for name, c := range map[string]struct {
		heed, period string
		want         grace.Outcome
		exit         int
	}{
		"polite": {"exit 3", "60", grace.Graceful, 3},
		"deaf":   {":", "1", grace.Forced, 128 + int(unix.SIGTERM)},
	} {
		t.Run(name, func(t *testing.T) {
			// Given: a VM that the agent guards.
			at := filepath.Join(dir, "ns_"+name)
			kit.Must(t, os.Mkdir(at, 0o755))
			up, press := filepath.Join(t.TempDir(), "up"), filepath.Join(t.TempDir(), "press")
			kit.Write(t, press, "kill -USR1 $(cat "+up+")\n")
			shim := exec.Command(binary, "--namespace=ns", "--name="+name, "--uid=u-1", "--grace-period="+c.period,
				"--launcher-dir="+at, "--ask-with=exec:sh "+press, "--", "sh", "-c",
				`trap "`+c.heed+`" USR1; echo $$ >`+up+`; while :; do sleep 0.05; done`)
			kit.Must(t, shim.Start())
			said := func(phase grace.Phase) bool {
				text, _ := os.ReadFile(filepath.Join(at, signals.FileStatus)) // it may come later
				var status grace.Status
				return json.Unmarshal(text, &status) == nil && status.Phase == phase && (phase != grace.Stopped || status.Outcome == c.want)
			}
			kit.Eventually(t, "it is guarded", func() bool {
				text, _ := os.ReadFile(up) // it may come later
				return said(grace.Running) && strings.HasSuffix(string(text), "\n")
			})
			// When its launcher is signalled.
			kit.Must(t, shim.Process.Signal(syscall.SIGTERM))
			// Then it ends by itself, or by the agent's signal, and its shim with it.
			_ = shim.Wait() // its status is looked at
			if got := shim.ProcessState.ExitCode(); got != c.exit {
				t.Errorf("exit status %d, want %d", got, c.exit)
			}
			kit.Eventually(t, "the agent says "+string(c.want), func() bool { return said(grace.Stopped) })
		})
	}
}
