package hostile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// fsyncs counts how often the agent calls fsync or fdatasync while during runs.
func fsyncs(t *testing.T, a *node.Agent, during func()) int {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command("strace", "-f", "-qq", "-o", log, "-e", "trace=fsync,fdatasync", "-p", fmt.Sprint(a.PID()))
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run make deps", err)
	}
	node.Eventually(t, soon, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.PID()))
		return err == nil && !strings.Contains(string(status), "TracerPid:\t0\n")
	}, "strace does not hold the agent")
	during()
	_ = cmd.Process.Signal(unix.SIGTERM) // strace detaches from the agent
	_ = cmd.Wait()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "sync(")
}

// Given a launcher that changes its grace period all the time, in the file that its shim
// has locked. Then the agent saves the record only about once a second.
func TestAGracePeriodThatIsEditedAllTheTimeCostsTheDiskLittle(t *testing.T) {
	f := newField(t)
	path := f.attacker.Launcher.Path("vm.json")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edits, begin := 0, time.Now()
	n := fsyncs(t, f.a, func() {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); edits++ {
			text := strings.Replace(string(content), `"gracePeriodSeconds":3600`, fmt.Sprintf(`"gracePeriodSeconds":%d`, 1000+edits%8000), 1)
			if err := os.WriteFile(path, []byte(text), 0); err != nil { // the same file, which is locked
				t.Fatal(err)
			}
			node.WaitUntil(t, time.Now().Add(20*ms))
		}
	})
	took := time.Since(begin)
	t.Logf("%d edits in %v, %d fsyncs", edits, took, n)
	// A save is one fsync of the file and one of the directory.
	if most := 2 * (int(took/time.Second) + 2); edits < 100 || n > most || n < 4 {
		t.Errorf("%d fsyncs, want %d at most, and some", n, most)
	}
	f.untouched(t)
}
