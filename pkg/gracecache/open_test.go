package gracecache

import (
	"errors"
	"fmt"
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
)

func TestSecondAgentIsToldWhoHasTheDirectory(t *testing.T) {
	dir := t.TempDir()
	first := openStore(t, dir)
	// when
	second, err := Open(dir)
	// then
	if second != nil || !errors.Is(err, ErrLocked) {
		t.Fatalf("second agent: %v, %v, want ErrLocked", second, err)
	}
	want := fmt.Sprintf("lock state directory %s: another node-agent is using it (pid %d)", dir, os.Getpid())
	if err.Error() != want {
		t.Errorf("message %q, want %q", err, want)
	}
	put(t, first, runningRecord())
	// and: the directory is free again
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, load(t, openStore(t, dir)).Records, runningRecord())
}

func TestLeftoversOfAKilledWriterAreRemoved(t *testing.T) {
	state, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	write(t, state, ".tmp-123", []byte("{"))
	write(t, filepath.Dir(outside), "outside", nil)
	if err := os.Symlink(outside, filepath.Join(state, ".tmp-456")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(state, ".tmp-dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	openStore(t, state)
	wantNames(t, state, ".tmp-dir") // a directory is nothing that we made
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("the link was followed: %v", err)
	}
}

func mountTmpfs(t *testing.T) string { t.Helper(); return mountTmpfsWith(t, "size=64k") }

func mountTmpfsWith(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("vmgrace-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount a tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// An agent that was killed in the middle of a grace period must find it again,
// whatever became of the disk.
func TestDirectoryThatCannotBeWrittenStillGivesItsRecords(t *testing.T) {
	for name, c := range map[string]struct {
		spoil, repair func(dir string) error
		want          error
	}{
		"full": {
			spoil: func(dir string) error {
				if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
					return fmt.Errorf("the disk did not fill: %w", err)
				}
				return nil
			},
			repair: func(dir string) error { return os.Remove(filepath.Join(dir, "filler")) },
			want:   unix.ENOSPC,
		},
		"read-only": {
			spoil:  func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
			repair: func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") },
			want:   unix.EROFS,
		},
	} {
		t.Run(name, func(t *testing.T) {
			// given
			dir := mountTmpfs(t)
			first := openStore(t, dir)
			put(t, first, shutdownRecord())
			write(t, dir, "a_bad.json", []byte("{"))
			write(t, dir, lockName, []byte("99999999\n")) // an earlier agent's pid
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(dir); err != nil {
				t.Fatal(err)
			}
			// when
			s, err := Open(dir)
			// then
			if s == nil || !errors.Is(err, ErrNotWritable) || !errors.Is(err, c.want) {
				t.Fatalf("store %v, error %v", s, err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			if m := err.Error(); !strings.HasPrefix(m, "state directory "+dir+" is not writable: ") ||
				!strings.HasSuffix(m, "; choose another with --state-dir") || strings.Contains(m, "\n") {
				t.Errorf("message %q", m)
			}
			if _, err := Open(dir); name == "full" && !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
				t.Errorf("a second agent is told %q", err)
			}
			loaded := load(t, s)
			wantRecords(t, loaded.Records, shutdownRecord())
			if len(loaded.Quarantined) != 1 {
				t.Errorf("quarantined %+v, want a_bad.json", loaded.Quarantined)
			}
			if err := s.Put(runningRecord()); !errors.Is(err, c.want) {
				t.Errorf("put: %v, want %v", err, c.want)
			}
			if err := c.repair(dir); err != nil {
				t.Fatal(err)
			}
			put(t, s, runningRecord())
		})
	}
}

func TestDirectoryThatCannotBeOne(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "file", nil)
	if err := os.Mkdir(filepath.Join(dir, "locked"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "precious", []byte("precious"))
	if err := os.Symlink(filepath.Join(dir, "precious"), filepath.Join(dir, "locked", lockName)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"file", "file/below", "locked", "/proc/vmgrace"} {
		path := bad
		if !filepath.IsAbs(bad) {
			path = filepath.Join(dir, bad)
		}
		s, err := Open(path)
		if s != nil || !errors.Is(err, ErrNotWritable) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: store %v, error %v, want ErrNotWritable", bad, s, err)
		}
	}
}

func TestStatusOfADirectoryThatIsNotThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, want ErrNotExist with the path", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("reading created the directory")
	}
}

// crashing is the variable that makes this test binary a writer.
const crashing = "VMGRACE_TEST_CRASHING"

// putUntilKilled changes two records in the current directory for as long as
// it lives, and says when it has begun.
func putUntilKilled() int {
	s, err := Open(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("writing")
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, rec := range []grace.Record{runningRecord(), shutdownRecord()} {
			if err := errors.Join(s.Put(rec), s.Put(named("other")), s.Delete("shop_other")); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
	}
	return 0
}

func TestAgentKilledInTheMiddleOfAWriteLeavesWholeRecords(t *testing.T) {
	dir := t.TempDir()
	for round := range 8 {
		// given: a writer with the lock
		writer := exec.Command(os.Args[0])
		writer.Env, writer.Dir = append(os.Environ(), crashing+"=1"), dir
		writer.Stderr = os.Stderr
		out, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Errorf("the writer did not begin: %v", err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(writer.Process.Pid)) {
			t.Errorf("error %v, want ErrLocked with pid %d", err, writer.Process.Pid)
		}
		// when: it dies, at another point each time
		<-time.After(time.Duration(round) * 3 * time.Millisecond)
		if err := writer.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := writer.Wait(); err == nil {
			t.Error("the writer ended by itself")
		}
		// then
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		loaded := load(t, s)
		if len(loaded.Quarantined) > 0 {
			t.Errorf("quarantined: %+v", loaded.Quarantined)
		}
		for _, rec := range loaded.Records {
			if rec != runningRecord() && rec != shutdownRecord() && rec != named("other") {
				t.Errorf("a record that nobody wrote: %+v", rec)
			}
		}
		if names, err := filepath.Glob(filepath.Join(dir, ".tmp-*")); err != nil || len(names) > 0 {
			t.Errorf("left over: %q, %v", names, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
