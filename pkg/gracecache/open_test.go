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

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

func TestSecondAgentIsToldWhoHasTheDirectory(t *testing.T) {
	dir := t.TempDir()
	first := openStore(t, dir)
	// when
	second, err := open(durable.Real(), dir)
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
	wantNames(t, state, ".tmp-dir") // we never make a directory
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("the link was followed: %v", err)
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
		s, err := open(durable.Real(), path)
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

// crashing is the environment variable that makes this test binary a writer.
const crashing = "VMGRACE_TEST_CRASHING"

// putUntilKilled changes two records in the current directory until it is killed, and
// says when it has begun.
func putUntilKilled() int {
	s, err := open(durable.Real(), ".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("writing")
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); {
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
		if _, err := open(durable.Real(), dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(writer.Process.Pid)) {
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
		s, err := open(durable.Real(), dir)
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
