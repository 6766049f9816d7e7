package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// fullFS is a disk without room.
type fullFS struct{ durable.FS }

func (fullFS) CreateTemp(string, string) (durable.File, error) { return nil, unix.ENOSPC }

func TestAFullDiskIsAnErrorOnlyWhereNoVMIsRecorded(t *testing.T) {
	full := durable.Disk{FS: fullFS{durable.Real().FS}}
	log := slog.New(slog.DiscardHandler)
	used := &Options{StateDir: given(t, clock{}.Now())}
	store, loaded, unsaved, err := used.openCache(full, log)
	if err != nil || !unsaved || len(loaded.Records) != 2 {
		t.Fatalf("with records: %+v, %v, %v", loaded, unsaved, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	empty := &Options{StateDir: t.TempDir()}
	if _, _, _, err := empty.openCache(full, log); !errors.Is(err, gracecache.ErrNotWritable) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without records: %v, want ErrNotWritable and ENOSPC", err)
	}
}

func TestAStateDirectoryThatGoesIsTakenAgainAndTheRecordsCalledFor(t *testing.T) {
	dir := given(t, clock{}.Now())
	store, err := gracecache.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	counted, called := 0, 0
	log := slog.New(slog.DiscardHandler)
	if err := keepCache(ctx, store, func() { called++; cancel() }, func() { counted++ }, log); err != nil {
		t.Fatal(err)
	}
	if called != 1 || counted != 1 {
		t.Errorf("called for the records %d times, counted %d times, want once each", called, counted)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the directory is not there again: %v", err)
	}
}
