//go:build !unit

package gracecache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/test/kit"
)

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
			dir := kit.Tmpfs(t, "size=64k")
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
			s, err := open(durable.Real(), dir)
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
			if _, err := open(durable.Real(), dir); name == "full" && !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
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

func TestBadFilesAreMovedAsideAndStopNoOther(t *testing.T) {
	// given
	dir := t.TempDir()
	s := openStore(t, dir)
	put(t, s, named("first"), shutdownRecord())
	bad := makeBadFiles(t, dir)
	// when
	loaded := within(t, s.Load)
	// then
	wantRecords(t, loaded.Records, shutdownRecord(), named("first"))
	wantReasons(t, loaded.Quarantined, bad)
	for _, q := range loaded.Quarantined {
		if q.MovedTo != q.Name+".quarantined" {
			t.Errorf("%s: moved to %q", q.Name, q.MovedTo)
		}
		if _, err := os.Lstat(filepath.Join(dir, q.Name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: still there (%v)", q.Name, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, q.MovedTo)); err != nil {
			t.Errorf("%s was not kept: %v", q.Name, err)
		}
	}
	// and: each is reported once
	if again := within(t, s.Load); len(again.Quarantined) != 0 || len(again.Records) != 2 {
		t.Errorf("the second time: %+v", again)
	}
}

func TestStatusReadsBesideTheAgentAndTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	put(t, s, named("first"), shutdownRecord())
	bad := makeBadFiles(t, dir)
	write(t, dir, ".tmp-1", nil) // a write of the agent, under way
	before := names(t, dir)
	loaded := within(t, func() (Loaded, error) { return Read(dir) })
	wantRecords(t, loaded.Records, shutdownRecord(), named("first"))
	wantReasons(t, loaded.Quarantined, bad)
	for _, q := range loaded.Quarantined {
		if q.MovedTo != "" {
			t.Errorf("%s: moved to %s", q.Name, q.MovedTo)
		}
	}
	if diff := cmp.Diff(before, names(t, dir)); diff != "" {
		t.Errorf("reading changed the directory (-before +after):\n%s", diff)
	}
}

// Between the listing and the reading of the directory anything may happen.
func TestFileReplacedAfterItWasListed(t *testing.T) {
	dir, fresh := t.TempDir(), t.TempDir()
	bad := makeBadFiles(t, fresh)
	for name := range bad {
		write(t, dir, name, nil)
	}
	write(t, dir, "shop_gone.json", encoded(t, named("gone")))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	loaded := within(t, func() (Loaded, error) { return readAll(fresh, entries) })
	wantRecords(t, loaded.Records)
	for _, q := range loaded.Quarantined {
		switch q.Name {
		case "shop_gone.json":
			t.Errorf("a VM that stopped is reported: %v", q.Reason)
		case "shop_link.json", "b_loop.json":
			if !errors.Is(q.Reason, unix.ELOOP) {
				t.Errorf("%s: %v, want ELOOP", q.Name, q.Reason)
			}
		case "b_fifo.json", "b_device.json", "b_dir.json":
			if !strings.Contains(q.Reason.Error(), "not a regular file") {
				t.Errorf("%s was read: %v", q.Name, q.Reason)
			}
		}
	}
	if len(loaded.Quarantined) != len(bad) {
		t.Errorf("%d files quarantined, want %d", len(loaded.Quarantined), len(bad))
	}
}

func TestUnreadableDirectoryIsNotAnEmptyOne(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	put(t, s, runningRecord())
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if loaded, err := s.Load(); err == nil {
		t.Errorf("loaded %+v from a directory that is gone", loaded)
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if loaded, err := asNobody(func() (Loaded, error) { return Read(dir) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("without the right to read: %+v, %v", loaded, err)
	}
}

func TestFileThatCannotBeReadIsQuarantined(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a_b.json", nil)
	for d := dir; d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := asNobody(func() (Loaded, error) { return Read(dir) })
	if err != nil || len(loaded.Quarantined) != 1 || !errors.Is(loaded.Quarantined[0].Reason, fs.ErrPermission) {
		t.Errorf("%+v, %v: want one file with ErrPermission", loaded, err)
	}
}

func TestAnAgentDoesNotKeepItsDiskFromBeingRemountedReadOnly(t *testing.T) {
	dir := kit.Tmpfs(t, "size=64k")
	s := openStore(t, dir)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Errorf("remount: %v", err)
	}
	if retake(t, s) {
		t.Error("a read-only directory is taken for another")
	}
}
