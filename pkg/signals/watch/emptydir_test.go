//go:build !unit

package watch

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestAnEmptyDirIsWhereKubeletPutsIt(t *testing.T) {
	for _, uid := range []string{"3f2504e0-4f89-11d3-9a0c-0305e82c3301", "1d4b8c0e9a6f5e3b2c7d", "A", strings.Repeat("a", 64)} {
		d, ok := EmptyDir("/var/lib/kubelet", uid, "ns", "vm")
		want := "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~empty-dir/vmgrace"
		if !ok || d.path() != want || d.Name != "vmgrace" || d.Namespace != "ns" || d.VM != "vm" || d.Pod != uid {
			t.Errorf("%s: %+v, %v", uid, d, ok)
		}
	}
	for _, uid := range []string{"", ".", "..", "../other", "a/b", "/", "a b", "a\x00", "a\n", "ä", "a_b", "a.b", strings.Repeat("a", 65)} {
		if d, ok := EmptyDir("/var/lib/kubelet", uid, "ns", "vm"); ok || d != (Directory{}) {
			t.Errorf("%q: %+v, %v", uid, d, ok)
		}
	}
}

func TestAVolumeThatKubeletHasNotMadeIsNotPresent(t *testing.T) {
	kubelet := t.TempDir()
	d := pod(t, kubelet, "uid-1")
	stages := []func(){
		func() {},
		func() { kit.Must(t, os.MkdirAll(filepath.Dir(d.Base), 0o755)) },
		func() { kit.Must(t, os.Mkdir(d.Base, 0o755)) },
	}
	for i, next := range stages {
		next()
		if v := look(t, d); v.Present || v.Trigger || v.Registered {
			t.Errorf("stage %d: %+v", i, v)
		}
		if err := d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Running}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stage %d: an answer to nobody: %v", i, err)
		}
		kit.Must(t, d.RemoveTrigger(look(t, d).TriggerID))
	}
	if _, err := os.Stat(d.path()); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the agent made kubelet's directory:", err)
	}
	d.mount(t)
	d.trigger(t)
	if v := look(t, d); !v.Present || !v.Trigger {
		t.Errorf("mounted: %+v", v)
	}
	kit.Must(t, d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Stopped}))
	kit.Must(t, d.RemoveTrigger(look(t, d).TriggerID))
	d.unmount(t) // nothing was kept open
	if v := look(t, d); !v.Present || v.Trigger {
		t.Errorf("unmounted: %+v", v)
	}
}

func TestTheAnswerCanBeReadByAnyUserWhateverTheUmask(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	d.mount(t)
	kit.Must(t, os.Chown(d.path(), 0, 2000)) // fsGroup
	kit.Must(t, os.Chmod(d.path(), 0o777|fs.ModeSetgid))
	defer syscall.Umask(syscall.Umask(0o077))
	kit.Must(t, d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Running}))
	info, err := os.Stat(filepath.Join(d.path(), signals.FileStatus))
	kit.Must(t, err)
	if info.Mode().Perm() != 0o644 {
		t.Errorf("status.json has mode %v", info.Mode())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 || st.Gid != 2000 {
		t.Errorf("status.json belongs to %+v", st)
	}
}

func TestAFileThatOnlyTheLaunchersUserMayReadIsRead(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	d.mount(t)
	for name, content := range map[string]string{
		signals.FileVM:      `{"version":1,"namespace":"ns","name":"vm","uid":"u1"}`,
		signals.FileTrigger: `{"version":1,"uid":"u1"}`,
	} {
		path := filepath.Join(d.path(), name)
		kit.Write(t, path, content)
		kit.Must(t, errors.Join(os.Chmod(path, 0o600), os.Chown(path, 65532, 65532)))
	}
	if v := look(t, d); v.UID != "u1" || v.TriggerUID != "u1" || v.Holder.Pod != "uid-1" {
		t.Errorf("%+v", v)
	}
}

func TestWhatATenantPlantsInAVolumeHoldsUpNoAnswer(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	for name, plant := range map[string]func(path string) error{
		"a link":        func(p string) error { return os.Symlink(victim, p) },
		"a loop":        func(p string) error { return os.Symlink(filepath.Base(p), p) },
		"a FIFO":        func(p string) error { return unix.Mkfifo(p, 0o666) },
		"a socket":      func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o666, 0) },
		"a device":      func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		"a secret file": func(p string) error { return os.WriteFile(p, []byte("x"), 0) },
	} {
		for _, file := range []string{signals.FileStatus, tempStatus} {
			t.Run(name+" as "+file, func(t *testing.T) {
				kit.Write(t, victim, "precious")
				d := pod(t, t.TempDir(), "uid-1")
				d.mount(t)
				kit.Must(t, os.Chmod(d.path(), 0o777|fs.ModeSticky)) // whichever: root answers
				kit.Must(t, plant(filepath.Join(d.path(), file)))
				kit.Must(t, os.Lchown(filepath.Join(d.path(), file), 65532, 65532))
				d.trigger(t)
				kit.Must(t, d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Stopped}))
				content, _, err := signals.ReadFile(open(t, d), signals.FileStatus)
				var s grace.Status
				if jsonErr := json.Unmarshal(content, &s); err != nil || jsonErr != nil || s.UID != "u1" {
					t.Errorf("%s, %v, %v", content, err, jsonErr)
				}
				kit.Must(t, d.RemoveTrigger(look(t, d).TriggerID))
				if content, err := os.ReadFile(victim); err != nil || string(content) != "precious" {
					t.Errorf("the link's target is now %q, %v", content, err)
				}
			})
		}
	}
}

func TestADirectoryInTheAnswersPlaceCostsThatTenantItsAnswerOnly(t *testing.T) {
	for _, file := range []string{signals.FileStatus, tempStatus} {
		d := pod(t, t.TempDir(), "uid-1")
		d.mount(t)
		planted := filepath.Join(d.path(), file)
		kit.Must(t, os.MkdirAll(filepath.Join(planted, strings.Repeat("deep/", 200)), 0o777))
		d.trigger(t)
		if err := d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Stopped}); err == nil {
			t.Error(file, "an answer that nobody can read counts as given")
		}
		if v := look(t, d); !v.Trigger {
			t.Errorf("%s: the trigger is not seen: %+v", file, v)
		}
		kit.Must(t, d.RemoveTrigger(look(t, d).TriggerID))
		kit.Must(t, os.RemoveAll(planted))
		kit.Must(t, d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Stopped}))
		if entries, err := os.ReadDir(d.path()); err != nil || len(entries) != 1 {
			t.Errorf("%s: left behind: %v, %v", file, entries, err)
		}
		d.unmount(t)
	}
}

func open(t *testing.T, d Directory) *os.Root {
	t.Helper()
	root, _, err := d.open()
	kit.Must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}
