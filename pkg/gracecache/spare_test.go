package gracecache

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/vmgrace/vmgrace/pkg/durable"
)

// spareFiles are the files in a directory that are no records.
func spareFiles(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if durable.IsTemp(e.Name()) {
			found = append(found, e.Name())
		}
	}
	return found
}

func TestAPreparedRecordIsWrittenIntoTheFileThatLiesReady(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	rec := runningRecord()
	put(t, s, rec)
	// Given: it is prepared, more than once.
	for range 3 {
		if err := s.Prepare(rec.Domain()); err != nil {
			t.Fatal(err)
		}
	}
	ready := spareFiles(t, dir)
	if len(ready) != 1 {
		t.Fatalf("files that lie ready: %v, want one", ready)
	}
	is, err := os.Lstat(filepath.Join(dir, ready[0]))
	if err != nil {
		t.Fatal(err)
	}
	// When it is put, then that file is the record.
	ending := shutdownRecord()
	ending.Name = rec.Name
	put(t, s, ending)
	now, err := os.Lstat(filepath.Join(dir, rec.Domain()+extension))
	if err != nil || !os.SameFile(is, now) {
		t.Errorf("the record is another file (%v)", err)
	}
	if left := spareFiles(t, dir); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	wantRecords(t, load(t, s).Records, ending)
}

func TestWhatLiesReadyGoesWithItsRecordAndWithTheAgent(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	prepare := func(domain string) {
		t.Helper()
		if err := s.Prepare(domain); err != nil {
			t.Fatal(err)
		}
	}
	rec := runningRecord()
	put(t, s, rec)
	prepare(rec.Domain())
	if err := s.Delete(rec.Domain()); err != nil {
		t.Fatal(err)
	}
	if left := spareFiles(t, dir); len(left) > 0 {
		t.Errorf("left over by a delete: %v", left)
	}
	prepare("shop_a")
	prepare("shop_b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := spareFiles(t, dir); len(left) > 0 {
		t.Errorf("left over by an orderly end: %v", left)
	}
}

// Two writes of one VM at once must not share a file.
func TestOneOfManyWritesAtOnceGetsTheFileThatLiesReady(t *testing.T) {
	s := openStore(t, t.TempDir())
	rec := shutdownRecord()
	for range 20 {
		var writes sync.WaitGroup
		for range 4 {
			writes.Go(func() {
				if err := errors.Join(s.Prepare(rec.Domain()), s.Put(rec)); err != nil {
					t.Error(err)
				}
			})
		}
		writes.Wait()
		wantRecords(t, load(t, s).Records, rec)
	}
	if err := s.Delete(rec.Domain()); err != nil {
		t.Fatal(err)
	}
	if left := spareFiles(t, s.dir); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// fillUp takes all that a file system has left, below filler.
func fillUp(dir string) error {
	filler := filepath.Join(dir, "filler")
	if err := os.Mkdir(filler, 0o700); err != nil {
		return err
	}
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(filler, strconv.Itoa(i)), make([]byte, 16<<10), 0o600); err != nil {
			return err
		}
	}
	return nil
}
