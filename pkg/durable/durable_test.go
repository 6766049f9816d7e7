package durable

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDir returns an empty directory called "dir".
func newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func wantContent(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s holds %.40q, want %.40q", path, got, want)
	}
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, 0, len(entries))
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names in the directory (-want +got):\n%s", diff)
	}
}

func TestWriteSyncsTheFileBeforeItsNameAndTheNameBeforeItReturns(t *testing.T) {
	dir := newDir(t)
	trace := newTrace("")
	if err := (Disk{FS: trace}).WriteFile(dir, "a", []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"create temp", "chmod", "write", "fsync file", "close", "rename temp to a", "fsync directory dir"}
	if diff := cmp.Diff(want, trace.taken()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestOtherOperationsSyncTheDirectoryLast(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(Disk, string) error
		want []string
	}{
		"remove": {
			func(d Disk, dir string) error { return d.Remove(dir, "a") },
			[]string{"remove a", "fsync directory dir"},
		},
		"remove two": {
			func(d Disk, dir string) error { return d.Remove(dir, "a", "b") },
			[]string{"remove a", "remove b", "fsync directory dir"},
		},
		"remove what is absent": {
			func(d Disk, dir string) error { return d.Remove(dir, "b") },
			[]string{"remove b", "fsync directory dir"},
		},
		"rename": {
			func(d Disk, dir string) error { return d.Rename(dir, "a", "c") },
			[]string{"rename a to c", "fsync directory dir"},
		},
		"mkdir": {
			func(d Disk, dir string) error { return d.MkdirAll(filepath.Join(dir, "x", "y"), 0o700) },
			[]string{"mkdir y", "mkdir x", "fsync directory dir", "mkdir y", "fsync directory x"},
		},
		"mkdir of what exists": {
			func(d Disk, dir string) error { return d.MkdirAll(dir+"/", 0o700) },
			[]string{"mkdir dir", "fsync directory 001"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			trace := newTrace("")
			if err := c.do(Disk{FS: trace}, dir); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, trace.taken()); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFailureOfAnyStepLeavesTheOldContentAndNoTemporaryFile(t *testing.T) {
	for _, failing := range []string{"create temp", "chmod", "write", "fsync file", "close", "rename temp to a"} {
		t.Run(failing, func(t *testing.T) {
			dir := newDir(t)
			if err := Real().WriteFile(dir, "a", []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			trace := newTrace(failing)
			err := Disk{FS: trace}.WriteFile(dir, "a", []byte("new"), 0o600)
			if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), filepath.Join(dir, "a")) {
				t.Errorf("error %v: want the injected one, with the path", err)
			}
			wantContent(t, filepath.Join(dir, "a"), "old")
			wantNames(t, dir, "a")
		})
	}
}

func TestFileWhoseFsyncFailedIsNeverUsedAgain(t *testing.T) {
	dir := newDir(t)
	trace := newTrace("fsync file")
	err := Disk{FS: trace}.WriteFile(dir, "a", []byte("new"), 0o600)
	if !errors.Is(err, errInjected) {
		t.Fatalf("error %v, want the injected one", err)
	}
	want := []string{"create temp", "chmod", "write", "fsync file", "close", "remove temp"}
	if diff := cmp.Diff(want, trace.taken()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestFailureToSyncTheDirectoryIsReported(t *testing.T) {
	dir := newDir(t)
	disk := Disk{FS: newTrace("fsync directory dir")}
	for name, err := range map[string]error{
		"write":  disk.WriteFile(dir, "a", []byte("new"), 0o600),
		"rename": disk.Rename(dir, "a", "b"),
		"remove": disk.Remove(dir, "b"),
		"mkdir":  disk.MkdirAll(filepath.Join(dir, "x"), 0o700),
	} {
		if !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "fsync") {
			t.Errorf("%s: error %v, want the injected one, naming the fsync", name, err)
		}
	}
	wantNames(t, dir, "x")
}

func TestBothErrorsAreReportedWhereTheTemporaryFileStays(t *testing.T) {
	dir := newDir(t)
	trace := newTrace("fsync file")
	err := Disk{FS: failingRemove{trace}}.WriteFile(dir, "a", nil, 0o600)
	if !errors.Is(err, errInjected) || !errors.Is(err, syscall.EIO) {
		t.Errorf("error %v: want the injected one and that of the removal", err)
	}
}

type failingRemove struct{ *traceFS }

func (failingRemove) Remove(string) error { return syscall.EIO }

func TestModeIsExactWhateverTheUmask(t *testing.T) {
	dir := newDir(t)
	defer syscall.Umask(syscall.Umask(0o077))
	for _, mode := range []fs.FileMode{0o600, 0o644} {
		if err := Real().WriteFile(dir, "a", nil, mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode {
			t.Errorf("mode %v, want %v", info.Mode(), mode)
		}
	}
}

func TestWriteReplacesALinkAndNotItsTarget(t *testing.T) {
	dir := newDir(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := Real().WriteFile(dir, "a", []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantContent(t, outside, "mine")
	wantContent(t, filepath.Join(dir, "a"), "new")
}

func TestDirectoryThatIsNotOne(t *testing.T) {
	dir := newDir(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Real().FS.SyncDir(fifo); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("fsync of a FIFO as directory: %v, want ENOTDIR, and no waiting", err)
	}
	if err := Real().WriteFile(filepath.Join(dir, "gone"), "a", nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("write into a missing directory: %v, want ErrNotExist", err)
	}
	if err := Real().Remove(filepath.Join(dir, "gone"), "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("remove in a missing directory: %v, want ErrNotExist: nothing was made durable", err)
	}
}

func TestReaderSeesOneWholeContentWhileManyWrite(t *testing.T) {
	dir := newDir(t)
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 100_000) }
	if err := Real().WriteFile(dir, "f", content(0), 0o600); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			for range 10 {
				if err := Real().WriteFile(dir, "f", content(i), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		got, err := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 100_000 || bytes.Count(got, got[:1]) != len(got) {
			t.Errorf("read a mixture of %d bytes", len(got))
		}
	}
	wantNames(t, dir, "f")
}
