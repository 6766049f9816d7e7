package node

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/internal/node/metrics"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// fullFS is a disk without room.
type fullFS struct{ durable.FS }

func (fullFS) CreateTemp(string, string) (durable.File, error) { return nil, unix.ENOSPC }

// frozenFS is a disk on which every write hangs until it is thawed.
type frozenFS struct {
	durable.FS
	thawed chan struct{}
}

func (f frozenFS) CreateTemp(dir, pattern string) (durable.File, error) {
	<-f.thawed
	return f.FS.CreateTemp(dir, pattern)
}

func (f frozenFS) SyncDir(dir string) error {
	<-f.thawed
	return f.FS.SyncDir(dir)
}

// guarded takes the records in place of an agent.
type guarded struct {
	records []grace.Record
	saves   chan struct{} // one for each time they were called for
}

func (g *guarded) Guard(records []grace.Record) { g.records = append(g.records, records...) }

func (g *guarded) SaveAgain() { g.saves <- struct{}{} }

// onDisk reads a state directory, or begins to.
func onDisk(t *testing.T, fs durable.FS, dir string) (*cache, *guarded) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	o := &Options{StateDir: dir}
	c, records, err := o.takeCache(ctx, durable.Disk{FS: fs}, metrics.New(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g := &guarded{records: records, saves: make(chan struct{}, 100)}
	c.agent = g
	t.Cleanup(func() {
		cancel()
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c, g
}

func TestAFullDiskIsAnErrorOnlyWhereNoVMIsRecorded(t *testing.T) {
	full := fullFS{durable.Real().FS}
	used, g := onDisk(t, full, given(t, clock{}.Now()))
	if err := used.open(t.Context()); err != nil || !used.ready() || len(g.records) != 2 || len(g.saves) != 1 {
		t.Errorf("with records: %+v, called for %d times, %v", g.records, len(g.saves), err)
	}
	empty, _ := onDisk(t, full, t.TempDir())
	if err := empty.open(t.Context()); !errors.Is(err, gracecache.ErrNotWritable) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without records: %v, want ErrNotWritable and ENOSPC", err)
	}
}

func TestADiskThatHangsHoldsUpNeitherTheRecordsNorTheStart(t *testing.T) {
	// Given: a disk on which writes hang.
	frozen := frozenFS{durable.Real().FS, make(chan struct{})}
	dir := given(t, clock{}.Now())
	// When: an agent starts.
	c, g := onDisk(t, frozen, dir)
	if len(g.records) != 2 {
		t.Fatalf("read: %+v", g.records)
	}
	if err := c.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Then: it is not ready, and a Put waits.
	put := make(chan error, 1)
	rec := g.records[0]
	rec.Period.Length++
	go func() { put <- c.Put(rec) }()
	if c.ready() {
		t.Error("ready on a disk that hangs")
	}
	select {
	case err := <-put:
		t.Errorf("put: %v", err)
	default:
	}
	// When it answers, all is written.
	close(frozen.thawed)
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- c.keep(ctx) }()
	if err := <-put; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	loaded, err := gracecache.Read(dir)
	if err != nil || len(loaded.Records) != 2 || loaded.Records[0] != rec || !c.ready() {
		t.Errorf("%+v, %v", loaded, err)
	}
}

func TestRecordsThatAreReadLateAreGuarded(t *testing.T) {
	// Given: a disk on which even reading hangs.
	dir := given(t, clock{}.Now())
	g := &guarded{saves: make(chan struct{}, 1)}
	c := &cache{dir: dir, disk: durable.Real(), log: slog.New(slog.DiscardHandler), meter: metrics.New(), agent: g,
		reading: make(chan taken, 1), writable: make(chan struct{}), end: t.Context().Done()}
	if err := c.open(t.Context()); err != nil || c.ready() || c.read.Load() {
		t.Fatalf("opened: %v, ready %t, read %t", err, c.ready(), c.read.Load())
	}
	// When it answers at last.
	c.take()
	err := c.opened(<-c.opening)
	// Then: its records are guarded.
	if err != nil || !c.ready() || len(g.records) != 2 {
		t.Errorf("%v, ready %t, %+v", err, c.ready(), g.records)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}
