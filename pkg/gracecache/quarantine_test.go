package gracecache

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

type badFile struct {
	reason string // what must be said about it
	make   func(path string) error
}

// badFiles returns one file of every kind that cannot be trusted.
func badFiles(t *testing.T) map[string]badFile {
	t.Helper()
	whole := encoded(t, named("x"))
	target := filepath.Join(t.TempDir(), "target")
	write(t, filepath.Dir(target), "target", encoded(t, named("link")))
	holds := func(data []byte) func(string) error {
		return func(path string) error { return os.WriteFile(path, data, 0o600) }
	}
	node := func(mode uint32, dev uint64) func(string) error {
		return func(path string) error { return syscall.Mknod(path, mode|0o600, int(dev)) }
	}
	return map[string]badFile{
		"b_empty.json":     {"empty", holds(nil)},
		"b_zeros.json":     {"zero bytes", holds(make([]byte, len(whole)))},
		"b_cut.json":       {"torn", holds(whole[:len(whole)/2])},
		"b_torn.json":      {"torn", holds(append(bytes.Clone(whole[:512]), make([]byte, 512)...))},
		"b_garbage.json":   {"torn or not a record", holds([]byte("once upon a time"))},
		"b_checksum.json":  {"wrong checksum", holds(bytes.Replace(whole, []byte("1m30s"), []byte("9m30s"), 1))},
		"b_future.json":    {"newer agent: version 2", holds([]byte(`{"version": 2}`))},
		"b_no-period.json": {"no grace period", holds(seal([]byte(`{"namespace":"b","name":"no-period"}`)))},
		"b_long.json":      {"more than 65536 bytes", holds(append(bytes.Clone(whole), make([]byte, maxSize)...))},
		"b_sparse.json":    {"more than 65536 bytes", func(path string) error { return errors.Join(holds(nil)(path), os.Truncate(path, 1<<40)) }},
		"b_foreign.json":   {"torn or not a record", holds([]byte(`{"data":"{}","checksum":1234567890}`))},
		"b_other.json":     {"belongs in shop_x.json", holds(whole)},
		"shop_copy.json":   {"belongs in shop_first.json", holds(encoded(t, named("first")))}, // which is there too
		"Not a VM's.json":  {"belongs in shop_x.json", holds(whole)},
		".json":            {"belongs in shop_x.json", holds(whole)},
		"shop_link.json":   {"not a regular file (L", func(path string) error { return os.Symlink(target, path) }},
		"b_loop.json":      {"not a regular file (L", func(path string) error { return os.Symlink("b_loop.json", path) }},
		"b_dir.json":       {"not a regular file (d", func(path string) error { return os.Mkdir(path, 0o700) }},
		"b_fifo.json":      {"not a regular file (p", node(syscall.S_IFIFO, 0)},
		"b_socket.json":    {"not a regular file (S", node(syscall.S_IFSOCK, 0)},
		"b_device.json":    {"not a regular file (Dc", node(syscall.S_IFCHR, unix.Mkdev(1, 5))},
	}
}

func makeBadFiles(t *testing.T, dir string) map[string]badFile {
	t.Helper()
	bad := badFiles(t)
	for name, file := range bad {
		if err := file.make(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bad
}

// within fails the test instead of letting it hang.
func within(t *testing.T, do func() (Loaded, error)) Loaded {
	t.Helper()
	var loaded Loaded
	done := make(chan error, 1)
	go func() {
		var err error
		loaded, err = do()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
		return loaded
	case <-time.After(waitTimeout):
		t.Fatal("a file in the state directory blocks its reader")
		return Loaded{}
	}
}

func wantReasons(t *testing.T, got []Quarantined, want map[string]badFile) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d files quarantined, want %d", len(got), len(want))
	}
	for _, q := range got {
		if reason := want[q.Name].reason; reason == "" || !strings.Contains(q.Reason.Error(), reason) {
			t.Errorf("%s: reason %q, want %q", q.Name, q.Reason, reason)
		}
	}
}

func TestEarlierQuarantinedFilesAreNeverOverwritten(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	for i := range 3 {
		write(t, dir, "a_b.json", fmt.Appendf(nil, "bad %d", i))
		within(t, s.Load)
	}
	for i, name := range []string{"a_b.json.quarantined", "a_b.json.quarantined-1", "a_b.json.quarantined-2"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if want := fmt.Sprintf("bad %d", i); err != nil || string(got) != want {
			t.Errorf("%s holds %q (%v), want %q", name, got, err, want)
		}
	}
}

func TestLongestFileNameCanBeQuarantined(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	for _, last := range []string{"x", "y"} { // the same once they are cut
		write(t, dir, strings.Repeat("n", nameMax-len(extension)-1)+last+extension, nil)
	}
	loaded := within(t, s.Load)
	for _, q := range loaded.Quarantined {
		if len(q.MovedTo) != nameMax || !strings.Contains(q.MovedTo, ".quarantined") {
			t.Errorf("moved to %q: %v", q.MovedTo, q.Reason)
		}
	}
	if names := names(t, dir); len(names) != 2 {
		t.Errorf("both must be kept: %q", names)
	}
}

func TestFilesThatAreNotRecordsAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	for _, name := range []string{"README", "a_b.json~", "a_b.json.quarantined", ".probe"} {
		write(t, dir, name, []byte("mine"))
	}
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	before := names(t, dir)
	if loaded := within(t, s.Load); len(loaded.Quarantined) != 0 {
		t.Errorf("quarantined: %+v", loaded.Quarantined)
	}
	if diff := cmp.Diff(before, names(t, dir)); diff != "" {
		t.Errorf("loading changed them (-before +after):\n%s", diff)
	}
}

// A node that is out of file descriptors says nothing about a record.
func TestShortageOfTheNodeQuarantinesNothing(t *testing.T) {
	for _, errno := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if !isShortage(&fs.PathError{Op: "open", Err: errno}) {
			t.Errorf("%v is taken for a bad file", errno)
		}
	}
	if isShortage(&fs.PathError{Op: "open", Err: unix.EIO}) {
		t.Error("EIO is taken for a shortage")
	}
}

// asNobody runs do without root's rights on files. setfsuid(2) concerns one thread; it
// stays locked to the goroutine and ends with it.
func asNobody(do func() (Loaded, error)) (loaded Loaded, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = unix.Setfsuid(65534); err == nil {
			loaded, err = do()
		}
	}()
	<-done
	return loaded, err
}
