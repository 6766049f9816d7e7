package hostile

import (
	"errors"
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

// TestNameProcesses is the launcher process of the test below. It holds the lock on vm.json
// in the directory NAME_IN. In this file it names the processes of NAME_PIDS in turn and
// answers requests that nobody made, until it is killed.
func TestNameProcesses(t *testing.T) {
	dir := os.Getenv("NAME_IN")
	if dir == "" {
		return // this process is not the launcher
	}
	pids := strings.Fields(os.Getenv("NAME_PIDS"))
	temp := filepath.Join(dir, ".claims")
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		err = errors.Join(unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}), os.Rename(temp, filepath.Join(dir, "vm.json")))
	}
	tick := time.NewTicker(ms)
	defer tick.Stop()
	for n := 1; err == nil; n++ {
		<-tick.C
		text := fmt.Sprintf(`{"version":1,"namespace":%q,"name":%q,"uid":"u-1","asks":"launcher","pid":%s,"requested":%d,"result":"ok"}`,
			os.Getenv("VM_NAMESPACE"), os.Getenv("VM_NAME"), pids[n%len(pids)], n)
		_, err = f.WriteAt(fmt.Appendf(nil, "%-512s\n", text), 0)
	}
	t.Fatal(err)
}

func TestALauncherThatNamesOthersProcessesHurtsNobody(t *testing.T) {
	f := newField(t)
	l := f.a.LauncherFor(t, "vmgrace-test", "liar", "u-1")
	liar := exec.Command(os.Args[0], "-test.run=^TestNameProcesses$")
	liar.Env = append(os.Environ(), "NAME_IN="+l.Dir, "VM_NAMESPACE="+l.Namespace, "VM_NAME="+l.Name,
		fmt.Sprintf("NAME_PIDS=%d %d %d %d 1", f.bystander.PID, f.a.PID(), f.bystander.Shim.PID(), os.Getpid()))
	if err := liar.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = liar.Process.Kill()
		_ = liar.Wait() // always an error, because it was killed
	})
	node.Eventually(t, soon, func() bool { return f.a.Metrics(t)[`vmgrace_rejected_total{reason="vm_process"}`] > 0 }, "nothing it names is rejected")
	l.Touch(t) // the launcher asks for a shutdown of what it names
	f.endures(t)
	if s, ok := f.a.StatusOf(t, &node.Guest{Domain: "vmgrace-test_liar"}); ok {
		t.Errorf("what it names is guarded as its VM: %+v", s)
	}
	if err := liar.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the launcher itself: %v", err)
	}
}
