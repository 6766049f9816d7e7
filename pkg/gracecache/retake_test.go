package gracecache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
)

func retake(t *testing.T, s *Store) bool {
	t.Helper()
	taken, err := s.Retake()
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

func TestAStateDirectoryThatWasTakenAwayIsTakenAgain(t *testing.T) {
	for name, do := range map[string]func(dir string) error{
		"removed":  os.RemoveAll,
		"replaced": func(dir string) error { return errors.Join(os.Rename(dir, dir+"-away"), os.Mkdir(dir, 0o700)) },
		"emptied": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, lockName)), os.Remove(filepath.Join(dir, "shop_db-0.prod.json")))
		},
		"with all above it": func(dir string) error { return os.RemoveAll(filepath.Dir(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			// given
			dir := filepath.Join(t.TempDir(), "above", "state")
			s := openStore(t, dir)
			put(t, s, runningRecord())
			if retake(t, s) {
				t.Error("taken again although nothing has happened")
			}
			// when
			if err := do(dir); err != nil {
				t.Fatal(err)
			}
			// then: it is there again, and ours alone
			if !retake(t, s) || retake(t, s) {
				t.Error("not taken again, or more than once")
			}
			if _, err := open(durable.Real(), dir); !errors.Is(err, ErrLocked) {
				t.Errorf("a second agent: %v, want ErrLocked", err)
			}
			put(t, s, runningRecord())
			wantRecords(t, load(t, s).Records, runningRecord())
		})
	}
}

func TestNothingIsWrittenIntoADirectoryThatIsAnotherAgentsNow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	other := openStore(t, dir)
	put(t, other, named("theirs"))
	// when
	if taken, err := s.Retake(); taken || !errors.Is(err, ErrLocked) {
		t.Errorf("%v, %v, want ErrLocked", taken, err)
	}
	// then
	if err := errors.Join(s.Put(runningRecord())); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), dir) {
		t.Errorf("put: %v, want ErrLost with the path", err)
	}
	if err := s.Delete("shop_theirs"); !errors.Is(err, ErrLost) {
		t.Errorf("delete: %v, want ErrLost", err)
	}
	wantNames(t, dir, "shop_theirs.json")
	// and: it is ours when they have left
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if !retake(t, s) {
		t.Error("not taken")
	}
	put(t, s, runningRecord())
}

func TestADirectoryThatCannotBeLookedAtIsNotLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, dir)
	loop := dir + "-away"
	if err := errors.Join(os.Rename(dir, loop), os.Symlink("state", dir)); err != nil {
		t.Fatal(err)
	}
	if taken, err := s.Retake(); taken || !errors.Is(err, unix.ELOOP) {
		t.Errorf("%v, %v, want ELOOP", taken, err)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(loop, dir)); err != nil {
		t.Fatal(err)
	}
	put(t, s, runningRecord())
}

func TestAClosedStoreTakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, dir)
	if err := errors.Join(s.Close(), os.RemoveAll(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Retake(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made again")
	}
}

// eioFS fails fsyncs as a broken disk does.
type eioFS struct {
	durable.FS
	dir   string // whose fsync fails
	files bool
}

func (f *eioFS) SyncDir(dir string) error {
	if dir == f.dir {
		return &fs.PathError{Op: "sync", Path: dir, Err: unix.EIO}
	}
	return f.FS.SyncDir(dir)
}

func (f *eioFS) CreateTemp(dir, pattern string) (durable.File, error) {
	file, err := f.FS.CreateTemp(dir, pattern)
	if err == nil && f.files {
		return eioFile{file}, nil
	}
	return file, err
}

type eioFile struct{ durable.File }

func (eioFile) Sync() error { return unix.EIO }

func TestARecordWhoseFsyncFailedIsNotTakenForWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	broken := &eioFS{FS: durable.Real().FS}
	s, err := open(durable.Disk{FS: broken}, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	put(t, s, runningRecord())
	for _, broken.dir = range []string{"", dir} {
		broken.files = broken.dir == ""
		if err := s.Put(shutdownRecord()); !errors.Is(err, unix.EIO) {
			t.Errorf("put: %v, want EIO", err)
		}
	}
	if err := s.Delete("shop_db-0.prod"); !errors.Is(err, unix.EIO) {
		t.Errorf("delete: %v, want EIO", err)
	}
	broken.dir = ""
	put(t, s, shutdownRecord())
	wantRecords(t, load(t, s).Records, shutdownRecord())
	wantNames(t, dir, "shop_db-0.prod.json")
}

// EIO for the directory above: the records in the state directory still count, but a
// write that a power loss could undo is not acknowledged.
func TestAStateDirectoryThatIsNotDurableGivesItsRecords(t *testing.T) {
	above := t.TempDir()
	dir := filepath.Join(above, "state")
	first := openStore(t, dir)
	put(t, first, shutdownRecord())
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	broken := &eioFS{FS: durable.Real().FS, dir: above}
	s, err := open(durable.Disk{FS: broken}, dir)
	if s == nil || !errors.Is(err, ErrNotWritable) || !errors.Is(err, unix.EIO) {
		t.Fatalf("store %v, error %v, want a store, ErrNotWritable and EIO", s, err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	wantRecords(t, load(t, s).Records, shutdownRecord())
	if _, err := s.Retake(); !errors.Is(err, unix.EIO) {
		t.Errorf("retake: %v, want EIO", err)
	}
	if err := s.Put(runningRecord()); !errors.Is(err, ErrLost) {
		t.Errorf("put: %v, want ErrLost", err)
	}
	broken.dir = ""
	if !retake(t, s) {
		t.Error("not taken")
	}
	put(t, s, runningRecord())
}
