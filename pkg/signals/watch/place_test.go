package watch

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// armed returns a place that is watched and was looked at long ago.
func armed(t *testing.T, path string) (*place, *fsnotify.Watcher) {
	t.Helper()
	notify, err := fsnotify.NewWatcher()
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, notify.Close()) })
	at := &place{path: path, stat: unix.Lstat}
	if !at.looks(t, notify) || !at.watched {
		t.Fatalf("not looked at, or not watched: %+v", at)
	}
	at.young = false
	return at, notify
}

func (at *place) looks(t *testing.T, notify *fsnotify.Watcher) bool {
	t.Helper()
	look, err := at.arm(notify)
	kit.Must(t, err)
	return look
}

func TestADirectoryInWhichNothingChangesIsLeftInPeace(t *testing.T) {
	dir := t.TempDir()
	at, notify := armed(t, dir)
	if at.looks(t, notify) {
		t.Error("looked at again although nothing has changed")
	}
}

func TestADirectoryInWhichNothingChangesIsLookedAtNowAndThen(t *testing.T) {
	// Locks leave no trace.
	dir, looks := t.TempDir(), 0
	launcher(t, dir, "ns_vm")
	notify, err := fsnotify.NewWatcher()
	kit.Must(t, err)
	defer notify.Close()
	w := NewParent(dir, slog.New(slog.DiscardHandler), func(string) { looks++ })
	w.scan(notify)
	w.scan(notify) // the directory is young
	looks = 0
	for n := range 2 * fullScan {
		if w.tick(notify); n == fullScan/2 && looks != 0 {
			t.Error("looked at again although nothing has changed")
		}
	}
	if looks < 2 || looks > 4 {
		t.Errorf("looked at %d times in %v", looks, 2*fullScan*scanInterval)
	}
}

func TestWhateverChangesADirectoryHasItLookedAt(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"a file":    func(p string) error { return os.WriteFile(filepath.Join(p, signals.FileTrigger), nil, 0o600) },
		"a removal": func(p string) error { return os.Remove(filepath.Join(p, "old")) },
		"a rename":  func(p string) error { return os.Rename(filepath.Join(p, "old"), filepath.Join(p, "new")) },
		"a change that a tenant hides": func(p string) error {
			info, err := os.Stat(p)
			if err == nil {
				err = os.Remove(filepath.Join(p, "old"))
			}
			if err == nil {
				err = os.Chtimes(p, info.ModTime(), info.ModTime())
			}
			return err
		},
		"another directory": func(p string) error {
			if err := os.Rename(p, p+".old"); err != nil {
				return err
			}
			return os.Mkdir(p, 0o700)
		},
		"its end": os.RemoveAll,
	} {
		dir := filepath.Join(t.TempDir(), "ns_vm")
		kit.Must(t, os.Mkdir(dir, 0o700))
		kit.Write(t, filepath.Join(dir, "old"), "")
		at, notify := armed(t, dir)
		clock := t.TempDir()
		kit.Eventually(t, "the file system's clock has ticked", func() bool {
			kit.Must(t, os.RemoveAll(filepath.Join(clock, "hand")))
			kit.Write(t, filepath.Join(clock, "hand"), "")
			_, now := (&place{path: clock, stat: unix.Lstat}).identify()
			return now.Nano() > at.changed.Nano()
		})
		kit.Must(t, change(dir))
		if !at.looks(t, notify) {
			t.Errorf("%s: not looked at", name)
		}
	}
}

func TestAChangeThatIsYoungIsNotTrusted(t *testing.T) {
	// Another change within the same tick would have the same time.
	dir := t.TempDir()
	at, notify := armed(t, dir)
	kit.Write(t, filepath.Join(dir, "vm.json"), "")
	for range 2 { // the next time is a scan later
		if !at.looks(t, notify) {
			t.Fatal("trusted too early")
		}
	}
	if at.looks(t, notify) {
		t.Error("looked at for ever")
	}
}

func TestWhereMountsCannotBeHeardOfThatIsSaid(t *testing.T) {
	if err := watchMounts(t.Context(), t.TempDir()+"/missing", func() {}); err == nil {
		t.Error("a kernel that does not tell is no error")
	}
	if err := watchMounts(t.Context(), os.Args[0], func() {}); err == nil {
		t.Error("a file that cannot be waited for is no error")
	}
}

func TestAQuietNodeIsNotEvenChecked(t *testing.T) {
	dir := t.TempDir()
	launcher(t, dir, "ns_vm")
	notify, err := fsnotify.NewWatcher()
	kit.Must(t, err)
	defer notify.Close()
	w := NewParent(dir, slog.New(slog.DiscardHandler), func(string) {})
	w.scan(notify)
	if !w.settled {
		t.Error("all is watched, and it is still looked for")
	}
	kit.Must(t, os.RemoveAll(dir))
	w.scan(notify)
	if w.settled {
		t.Error("the launchers directory is missing, and nobody looks for it")
	}
	p := New(slog.New(slog.DiscardHandler), func(string) {})
	d := pod(t, t.TempDir(), "uid-1")
	p.Set("ns_vm", d)
	p.scan(notify)
	if p.settled {
		t.Error("a place is missing, and nobody looks for it")
	}
	d.make(t)
	if p.check(notify); !p.settled {
		t.Error("all places are watched, and they are still looked for")
	}
}

// pod returns the launcher directory of a pod that kubelet has not set up yet.
func pod(t *testing.T, kubeletDir, uid string) Directory {
	t.Helper()
	d, ok := EmptyDir(kubeletDir, uid, "ns", "vm")
	if !ok {
		t.Fatalf("%q is no pod's UID", uid)
	}
	return d
}

func (d Directory) path() string { return filepath.Join(d.Base, d.Name) }

// make makes the directory, as kubelet does before it mounts the volume.
func (d Directory) make(t *testing.T) {
	t.Helper()
	kit.Must(t, os.MkdirAll(d.path(), 0o755))
}
