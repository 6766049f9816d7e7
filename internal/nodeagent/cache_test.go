package nodeagent

import (
	"errors"
	"log/slog"
	"os"
	"testing"

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

func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(dir+"/"+e.Name()))
	}
	return err
}
