//go:build !unit

package shim

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/pkg/signals/watch"
	"github.com/vmgrace/vmgrace/test/kit"
)

// nonRoot is the user of a launcher in a pod at the restricted level, fsGroup that pod's
// fsGroup.
const (
	nonRoot = 65532
	fsGroup = 2000
)

// emptyDir makes the launcher pod's volume as kubelet does, and returns it as the agent
// sees it and as a path.
func emptyDir(t *testing.T, mode fs.FileMode) (watch.Directory, string) {
	t.Helper()
	kubelet := t.TempDir()
	// A container sees only the volume, so it does not need the mode of the directories above.
	kit.Must(t, os.Chmod(filepath.Dir(kubelet), 0o755))
	d, _ := watch.EmptyDir(kubelet, "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "ns", "vm")
	dir := filepath.Join(d.Base, d.Name)
	kit.Must(t, os.MkdirAll(dir, 0o755))
	kit.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { kit.Must(t, unix.Unmount(dir, 0)) }) // no process of ours keeps it busy
	kit.Must(t, os.Chown(dir, 0, fsGroup))
	kit.Must(t, os.Chmod(dir, mode))
	return d, dir
}

// asNonRoot makes the shim run as user nonRoot without any capability.
func (s *shimProcess) asNonRoot() *shimProcess {
	s.t.Helper()
	kit.Must(s.t, os.Chmod(filepath.Dir(binary), 0o755))
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nonRoot, Gid: nonRoot, Groups: []uint32{fsGroup}},
	}
	return s
}

// asRestrictedPIDOne makes the shim PID 1 of a container at the restricted level.
func (s *shimProcess) asRestrictedPIDOne() *shimProcess {
	s.t.Helper()
	kit.Must(s.t, os.Chmod(filepath.Dir(binary), 0o755))
	setpriv, err := exec.LookPath("setpriv")
	kit.Must(s.t, err)
	s.cmd.Path = setpriv
	s.cmd.Args = append([]string{"setpriv", "--reuid=65532", "--regid=65532", "--groups=2000", "--no-new-privs",
		"--bounding-set=-all", "--inh-caps=-all", binary}, s.cmd.Args[1:]...)
	return s.inPIDNamespace()
}

func TestALauncherThatIsNotRootIsServedInItsVolume(t *testing.T) {
	for name, mode := range map[string]fs.FileMode{
		"emptyDir": 0o777, "emptyDir with fsGroup": 0o777 | fs.ModeSetgid, "for the group alone": 0o770 | fs.ModeSetgid,
		"sticky": 0o777 | fs.ModeSticky,
	} {
		t.Run(name, func(t *testing.T) {
			d, dir := emptyDir(t, mode)
			for _, s := range []*shimProcess{
				prepare(t, dir, "--grace-period", "45", "--pid-file", filepath.Join(dir, "vm.pid")).asNonRoot(),
				prepare(t, dir, "--grace-period", "45", "--pid-file", filepath.Join(dir, "vm.pid")).asRestrictedPIDOne(),
			} {
				// An earlier launcher of this pod left these files.
				kit.Must(t, d.WriteStatus(grace.Status{UID: "u-1", Phase: grace.Running}))
				leftover := filepath.Join(dir, signals.FileTrigger)
				kit.Must(t, os.WriteFile(leftover, []byte(`{"version":1,"uid":"u-0"}`), 0o600))
				kit.Must(t, os.Chown(leftover, nonRoot, nonRoot))
				s.start().served(d)
				s.refusedNothing()
			}
		})
	}
}

// served runs one shim from registration to end. The test plays the agent.
func (s *shimProcess) served(d watch.Directory) {
	s.t.Helper()
	look := func() watch.View {
		view, err := d.Look()
		kit.Must(s.t, err)
		return view
	}
	s.eventually("it is registered", func() bool { return look().Locked })
	view := look()
	if view.UID != "u-1" || view.Grace != "45" || view.Holder.PID != s.cmd.Process.Pid || view.Trigger || len(view.Rejected) != 0 {
		s.t.Errorf("registered: %+v; the shim is %d", view, s.cmd.Process.Pid)
	}
	info, err := os.Stat(filepath.Join(s.dir, signals.FileVM))
	kit.Must(s.t, err)
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != nonRoot {
		s.t.Errorf("vm.json belongs to %+v", st)
	}
	s.signal(syscall.SIGTERM)
	s.eventually("the trigger", func() bool { return look().Trigger })
	if uid := look().TriggerUID; uid != "u-1" {
		s.t.Errorf("the trigger is of %q", uid)
	}
	kit.Must(s.t, d.WriteStatus(grace.Status{UID: "u-1", Phase: grace.ShuttingDown}))
	s.staysFor(300 * time.Millisecond)
	kit.Must(s.t, d.WriteStatus(grace.Status{UID: "u-1", Phase: grace.Stopped, Outcome: grace.Graceful}))
	kit.Must(s.t, d.RemoveTrigger(look().TriggerID))
	s.wantExit(0)
	if view := look(); view.Registered || view.Trigger {
		s.t.Errorf("after the end: %+v", view)
	}
}

func (s *shimProcess) refusedNothing() {
	s.t.Helper()
	if text := s.stderr.String(); strings.Contains(text, "denied") || strings.Contains(text, "not permitted") {
		s.t.Errorf("it was refused something:\n%s", text)
	}
}
