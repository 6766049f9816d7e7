//go:build !unit

package watch

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// mount does what kubelet does for an emptyDir of medium Memory.
func (d Directory) mount(t *testing.T) {
	t.Helper()
	d.make(t)
	kit.Must(t, unix.Mount("tmpfs", d.path(), "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(d.path(), unix.MNT_DETACH) }) // it may be gone
	kit.Must(t, os.Chmod(d.path(), 0o777))
}

// unmount fails where anything is held open.
func (d Directory) unmount(t *testing.T) {
	t.Helper()
	if err := unix.Unmount(d.path(), 0); err != nil {
		t.Fatal("kubelet could not unmount the volume:", err)
	}
}

func (d Directory) trigger(t *testing.T) {
	t.Helper()
	kit.Write(t, filepath.Join(d.path(), ".temp"), "")
	kit.Must(t, os.Rename(filepath.Join(d.path(), ".temp"), filepath.Join(d.path(), signals.FileTrigger)))
}

// told returns a running watcher after tell has set it up.
func told(t *testing.T, tell func(p *Watcher)) (*Watcher, *watched) {
	t.Helper()
	w := &watched{t: t, looks: make(chan string, 100_000)}
	p := New(slog.New(slog.DiscardHandler), func(name string) { w.looks <- name })
	tell(p)
	w.runs(p)
	return p, w
}

// hears waits until a trigger there is noticed. Only an event can do that in this time.
func (w *watched) hears(name string, d Directory) {
	w.t.Helper()
	w.drain()
	d.trigger(w.t)
	w.looksAt(name)
}

func TestAPlaceToldWhileItRunsIsWatched(t *testing.T) {
	kubelet := t.TempDir()
	p, w := told(t, func(*Watcher) {})
	begin := time.Now()
	for i := range 40 { // one in each check would take 20 s
		name := fmt.Sprint("ns_missing", i)
		p.Set(name, pod(t, kubelet, fmt.Sprint("missing-", i)))
		w.looksAt(name)
	}
	if took := time.Since(begin); took > 40*pollInterval/2 {
		t.Errorf("what is told waits for the next check: %v", took)
	}
	for i := range 3 {
		d, name := pod(t, kubelet, fmt.Sprint("uid-", i)), fmt.Sprint("ns_vm", i)
		d.mount(t)
		p.Set(name, d)
		w.looksAt(name)
		w.hears(name, d)
	}
}

func TestAPlaceThatIsMissingIsLookedAtAndFoundWhenItComes(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	_, w := told(t, func(p *Watcher) { p.Set("ns_vm", d) })
	w.looksAt("ns_vm")
	w.drain()
	d.make(t)
	w.looksAt("ns_vm")
	w.hears("ns_vm", d)
	w.drain()
	d.mount(t) // over what is watched
	w.looksAt("ns_vm")
	w.hears("ns_vm", d)
}

func TestWatchingHoldsUpNoUnmountAndItsEndIsLookedAt(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	d.mount(t)
	_, w := told(t, func(p *Watcher) { p.Set("ns_vm", d) })
	w.hears("ns_vm", d)
	kit.Must(t, os.Remove(filepath.Join(d.path(), signals.FileTrigger)))
	w.looksAt("ns_vm")
	w.drain()
	d.unmount(t)
	w.looksAt("ns_vm")
	w.drain()
	kit.Must(t, os.RemoveAll(filepath.Dir(d.Base)))
	w.looksAt("ns_vm")
	w.drain()
	d.mount(t)
	w.looksAt("ns_vm")
	w.hears("ns_vm", d)
}

func TestAnotherMountThatLooksTheSameIsWatched(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	d.mount(t)
	_, w := told(t, func(p *Watcher) { p.Set("ns_vm", d) })
	w.looksAt("ns_vm")
	same := false
	for i := 0; i < 50 && !same; i++ { // somebody else may mount something, too
		w.drain()
		before, _ := (&place{path: d.path(), stat: unix.Lstat}).identify()
		d.unmount(t)
		d.mount(t)
		after, _ := (&place{path: d.path(), stat: unix.Lstat}).identify()
		same = after == before
		w.looksAt("ns_vm")
	}
	if !same {
		t.Fatal("the kernel gives every mount other numbers: the test shows nothing")
	}
	w.hears("ns_vm", d)
}

func TestAnEqualMountOverTheLaunchersDirectoryIsWatched(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1") // here it stands for the launchers directory
	d.mount(t)
	launcher(t, d.path(), "ns_first")
	w := watching(t, d.path())
	w.looksAt("ns_first")
	w.drain() // a scan has it open
	d.unmount(t)
	d.mount(t)
	path := launcher(t, d.path(), "ns_second")
	w.looksAt("ns_second")
	w.drain()
	kit.Write(t, filepath.Join(path, signals.FileTrigger), "")
	w.looksAt("ns_second")
}

func TestALauncherDirectoryThatWasMovedAwayIsNotWatchedOn(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	d.make(t)
	_, w := told(t, func(p *Watcher) { p.Set("ns_vm", d) })
	w.looksAt("ns_vm")
	w.drain()
	kit.Must(t, os.Rename(d.path(), d.path()+".old"))
	w.looksAt("ns_vm")
	w.drain()
	d.make(t)
	w.looksAt("ns_vm")
	w.hears("ns_vm", d)
}

func TestOtherNamesInAPlaceAreOfNoInterest(t *testing.T) {
	d := pod(t, t.TempDir(), "uid-1")
	d.mount(t)
	_, w := told(t, func(p *Watcher) { p.Set("ns_vm", d) })
	w.looksAt("ns_vm")
	w.drain()
	for i := range 5_000 {
		name := filepath.Join(d.path(), "x"+string(rune('a'+i%26)))
		kit.Write(t, name, "")
		kit.Must(t, os.Rename(name, filepath.Join(d.path(), "y")))
	}
	d.trigger(t)
	w.looksAt("ns_vm")
	if n := len(w.looks); n > 10 {
		t.Errorf("%d more looks for a storm that is none of ours", n)
	}
}

func TestOnlyWhatCanChangeAFileThatCountsIsLookedAt(t *testing.T) {
	d, looks := pod(t, t.TempDir(), "uid-1"), 0
	p := New(slog.New(slog.DiscardHandler), func(string) { looks++ })
	p.Set("ns_vm", d)
	p.scan(nil)
	for _, c := range []struct {
		path  string
		op    fsnotify.Op
		looks int
	}{
		{d.path() + "/shutdown", fsnotify.Create, 1},
		{d.path() + "/shutdown", fsnotify.Write | fsnotify.Chmod, 1},
		{d.path() + "/vm.json", fsnotify.Remove, 1},
		{d.path() + "/vm.json", fsnotify.Chmod, 0},
		{d.path() + "/status.json", fsnotify.Create, 0},
		{d.path() + "/x/shutdown", fsnotify.Create, 0},
		{d.path(), fsnotify.Chmod, 0},
		{d.Base + "/shutdown", fsnotify.Create, 0},
		{"", 0, 0},
	} {
		looks = 0
		if p.event(nil, fsnotify.Event{Name: c.path, Op: c.op}); looks != c.looks {
			t.Errorf("%s %s: %d looks, want %d", c.op, c.path, looks, c.looks)
		}
	}
}

func TestEventsOfPlacesThatWereLostAreMadeUpFor(t *testing.T) {
	kubelet := t.TempDir()
	noise, quiet := pod(t, kubelet, "noise"), pod(t, kubelet, "quiet")
	noise.mount(t)
	quiet.mount(t)
	w := &watched{t: t, looks: make(chan string, 100_000)}
	var lost atomic.Bool
	var gate sync.Mutex // its holder stops the watcher's reads
	p := New(slog.New(slog.NewTextHandler(hears(func(line string) {
		if strings.Contains(line, "inotify lost events") {
			lost.Store(true)
		}
	}), nil)), func(name string) {
		gate.Lock()
		defer gate.Unlock()
		w.looks <- name
	})
	p.Set("ns_noise", noise)
	p.Set("ns_quiet", quiet)
	w.runs(p)
	w.hears("ns_quiet", quiet)
	kit.Must(t, os.Remove(filepath.Join(quiet.path(), signals.FileTrigger)))
	w.looksAt("ns_quiet")
	w.drain()
	gate.Lock()
	noise.trigger(t)
	for i := range 25_000 { // the queue has 16,384
		a := filepath.Join(noise.path(), fmt.Sprint("noise-", i%2))
		kit.Must(t, unix.Mkfifo(a, 0o600))
		kit.Must(t, os.Remove(a))
	}
	quiet.trigger(t) // its event is lost
	gate.Unlock()
	kit.Eventually(t, "events were lost, or the test shows nothing", lost.Load)
	w.looksAt("ns_quiet")
	w.hears("ns_quiet", quiet)
}

// hears is a log that passes each line on.
type hears func(line string)

func (h hears) Write(line []byte) (int, error) { h(string(line)); return len(line), nil }

func TestWhatIsForgottenIsLetGoOf(t *testing.T) {
	kubelet := t.TempDir()
	first, second := pod(t, kubelet, "uid-1"), pod(t, kubelet, "uid-2")
	first.mount(t)
	second.mount(t)
	notify, err := fsnotify.NewWatcher()
	kit.Must(t, err)
	defer notify.Close()
	var looks []string
	p := New(slog.New(slog.DiscardHandler), func(name string) { looks = append(looks, name) })
	for i, step := range []struct {
		set            func()
		watches, looks int // looks: since the step before
	}{
		{func() { p.Set("ns_vm", first) }, 1, 1},
		{func() { p.Set("ns_vm", first) }, 1, 0}, // nothing new
		{func() { p.Set("ns_vm", second) }, 1, 1},
		{func() { p.Set("ns_other", second) }, 1, 2}, // a pod changes hands: new first
		{func() { p.Set("ns_vm", Directory{}) }, 1, 1},
		{func() { p.Set("ns_other", Directory{}); p.Set("ns_never", Directory{}) }, 0, 0},
	} {
		looks = nil
		step.set()
		p.check(notify)
		if list := notify.WatchList(); len(list) != step.watches || len(looks) != step.looks {
			t.Errorf("step %d: watches %v, looks %v; want %d and %d", i, list, looks, step.watches, step.looks)
		}
	}
	if len(p.wanted) != 0 || len(p.watched) != 0 {
		t.Errorf("remembered: %v, %v", p.wanted, p.watched)
	}
}

func TestALinkInAPlaceIsNotFollowed(t *testing.T) {
	kubelet := t.TempDir()
	d, other := pod(t, kubelet, "uid-1"), pod(t, kubelet, "uid-2")
	other.make(t)
	kit.Must(t, os.MkdirAll(d.Base, 0o755))
	kit.Must(t, os.Symlink(other.path(), d.path()))
	notify, err := fsnotify.NewWatcher()
	kit.Must(t, err)
	defer notify.Close()
	p := New(slog.New(slog.DiscardHandler), func(string) {})
	p.Set("ns_vm", d)
	p.scan(notify)
	p.check(notify)
	if list := notify.WatchList(); len(list) != 0 {
		t.Errorf("watched: %v", list)
	}
}

func TestPlacesMayBeToldByAnybodyAtAnyTime(t *testing.T) {
	kubelet := t.TempDir()
	const names, times = 8, 50
	last := make([]Directory, names)
	p, w := told(t, func(*Watcher) {})
	var tellers sync.WaitGroup
	for i := range names {
		last[i] = pod(t, kubelet, fmt.Sprint("last-", i))
		last[i].make(t)
		tellers.Go(func() {
			for n := range times {
				p.Set(fmt.Sprint("ns_vm", i), pod(t, kubelet, fmt.Sprint("uid-", i, "-", n)))
				p.Set(fmt.Sprint("ns_vm", i), Directory{})
			}
			p.Set(fmt.Sprint("ns_vm", i), last[i])
		})
	}
	tellers.Wait()
	for i, d := range last {
		name := fmt.Sprint("ns_vm", i)
		kit.Eventually(t, name+" is heard", func() bool {
			_ = os.Remove(filepath.Join(d.path(), signals.FileTrigger)) // may be the first time
			d.trigger(t)
			for len(w.looks) > 0 {
				if <-w.looks == name {
					return true
				}
			}
			return false
		})
	}
}

// The whole agent may use 0.1 % of a core while nothing happens: one scan every
// ten seconds.
func BenchmarkScanOf200QuietPlaces(b *testing.B) {
	b.ReportAllocs()
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		b.Fatal(err)
	}
	defer notify.Close()
	p, kubelet := New(slog.New(slog.DiscardHandler), func(string) {}), b.TempDir()
	for i := range 200 {
		d, _ := EmptyDir(kubelet, fmt.Sprintf("3f2504e0-4f89-11d3-9a0c-0305e82c33%02d", i), "ns", "vm")
		if err := os.MkdirAll(d.path(), 0o755); err != nil {
			b.Fatal(err)
		}
		p.Set(fmt.Sprint("ns_vm", i), d)
	}
	p.scan(notify)
	for b.Loop() {
		p.scan(notify)
	}
}
