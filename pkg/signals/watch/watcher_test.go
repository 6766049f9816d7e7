package watch

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestMain(m *testing.M) {
	// A copy of the test binary holds a lock: POSIX locks belong to a process.
	if kubeletDir := os.Getenv("WATCH_KUBELET_DIR"); kubeletDir != "" {
		os.Exit(watchPlaces(kubeletDir))
	}
	if dir := os.Getenv("COME_AND_GO_IN"); dir != "" {
		os.Exit(comeAndGo(dir))
	}
	if path := os.Getenv("HOLD_LOCK"); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			err = syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK})
		}
		if err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString("held\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func holdLock(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOLD_LOCK="+path)
	out, err := cmd.StdoutPipe()
	kit.Must(t, err)
	in, err := cmd.StdinPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("held\n"))); err != nil {
		t.Fatal("the lock is not held:", err)
	}
	return cmd
}

// watched is a running watcher, and the names that it asked to look at.
type watched struct {
	t     *testing.T
	looks chan string
}

func watching(t *testing.T, dir string) *watched {
	t.Helper()
	w := &watched{t: t, looks: make(chan string, 100_000)}
	w.runs(NewParent(dir, slog.New(slog.DiscardHandler), func(name string) { w.looks <- name }))
	return w
}

// runs a watcher until end is called or the test ends, once it is armed.
func (w *watched) runs(watcher interface {
	Run(context.Context) error
	Armed() bool
}) (end func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- watcher.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				w.t.Error(err)
			}
		case <-time.After(5 * time.Second):
			w.t.Error("the watcher does not end")
		}
	})
	w.t.Cleanup(end)
	kit.Eventually(w.t, "the watcher is armed", watcher.Armed)
	return end
}

// looksAt waits until the watcher asks for a look at name, less than the time to the next
// scan.
func (w *watched) looksAt(name string) {
	w.t.Helper()
	over := time.After(scanInterval * 8 / 10)
	for {
		select {
		case got := <-w.looks:
			if got == name {
				return
			}
		case <-over:
			w.t.Fatalf("%s is not looked at", name)
		}
	}
}

func (w *watched) drain() {
	for len(w.looks) > 0 {
		<-w.looks
	}
}

func launcher(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	kit.Must(t, os.Mkdir(path, 0o755))
	return path
}

func TestATriggerIsSeenAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := launcher(t, dir, "ns_vm")
	w := watching(t, dir)
	w.looksAt("ns_vm")
	w.drain()
	kit.Write(t, filepath.Join(path, ".temp"), "")
	kit.Must(t, os.Rename(filepath.Join(path, ".temp"), filepath.Join(path, signals.FileTrigger)))
	w.looksAt("ns_vm")
}

func TestANewLauncherDirectoryIsWatched(t *testing.T) {
	dir := t.TempDir()
	w := watching(t, dir)
	path := launcher(t, dir, "ns_new")
	w.looksAt("ns_new")
	w.drain()
	kit.Write(t, filepath.Join(path, signals.FileVM), "{}")
	w.looksAt("ns_new")
}

func TestALauncherDirectoryThatWasReplacedIsWatched(t *testing.T) {
	dir := t.TempDir()
	path := launcher(t, dir, "ns_vm")
	w := watching(t, dir)
	kit.Must(t, os.RemoveAll(path))
	launcher(t, dir, "ns_vm")
	w.looksAt("ns_vm")
	// The events of the change itself come first; then this one must come.
	for i := 0; ; i++ {
		w.drain()
		kit.Write(t, filepath.Join(path, signals.FileTrigger), "")
		select {
		case <-w.looks:
			return
		case <-time.After(time.Second):
			if i == 5 {
				t.Fatal("the new directory is not watched")
			}
			kit.Must(t, os.Remove(filepath.Join(path, signals.FileTrigger)))
		}
	}
}

func TestTheParentIsNotWatched(t *testing.T) {
	// Much unrelated may happen there, and each event costs.
	parent := t.TempDir()
	dir := filepath.Join(parent, "launchers")
	kit.Must(t, os.Mkdir(dir, 0o755))
	notify, err := fsnotify.NewWatcher()
	kit.Must(t, err)
	defer notify.Close()
	w := NewParent(dir, slog.New(slog.DiscardHandler), func(string) {})
	for range 3 { // there, gone, back
		w.scan(notify)
		for _, path := range notify.WatchList() {
			if path == parent {
				t.Error("the parent is watched")
			}
		}
		if os.Remove(dir) != nil {
			kit.Must(t, os.Mkdir(dir, 0o755))
		}
	}
}
