package gracecache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// waitTimeout bounds every wait of these tests.
const waitTimeout = 20 * time.Second

func TestNextAgentFindsWhatWasPut(t *testing.T) {
	// given
	dir := filepath.Join(t.TempDir(), "new", "state")
	s := openStore(t, dir)
	put(t, s, runningRecord(), named("other"), shutdownRecord())
	// when
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// then
	wantRecords(t, load(t, openStore(t, dir)).Records, shutdownRecord(), named("other"))
	wantNames(t, dir, "shop_db-0.prod.json", "shop_other.json")
	for path, want := range map[string]fs.FileMode{
		dir: 0o700 | fs.ModeDir, filepath.Join(dir, "shop_other.json"): 0o600, filepath.Join(dir, lockName): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v (%v), want %v", path, info.Mode(), err, want)
		}
	}
}

func TestDeletedRecordIsGone(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	put(t, s, runningRecord(), named("other"))
	for range 2 { // the second time it is absent already
		if err := s.Delete("shop_other"); err != nil {
			t.Fatal(err)
		}
	}
	wantNames(t, dir, "shop_db-0.prod.json")
}

func TestRecordThatCouldNotBeReadAgainIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	for name, change := range map[string]func(*grace.Record){
		"path in the namespace":       func(r *grace.Record) { r.Namespace = "../shop" },
		"path in the name":            func(r *grace.Record) { r.Name = "a/../../b" },
		"no name":                     func(r *grace.Record) { r.Name = "" },
		"dots":                        func(r *grace.Record) { r.Namespace, r.Name = "..", ".." },
		"zero byte":                   func(r *grace.Record) { r.Name = "a\x00" },
		"two separators":              func(r *grace.Record) { r.Namespace = "a_b" },
		"negative grace period":       func(r *grace.Record) { r.Period.Length = -1 },
		"endless grace period":        func(r *grace.Record) { r.Period.Length = grace.MaxPeriod + 1 },
		"shutdown without a cause":    func(r *grace.Record) { r.Shutdown.Deadline = 5 },
		"pid that means every one":    func(r *grace.Record) { r.Instance.PID = -1 },
		"time that RFC 3339 has not":  func(r *grace.Record) { *r = shutdownRecord(); r.Shutdown.DeadlineAt = time.Unix(1<<40, 0) },
		"longer than is ever read":    func(r *grace.Record) { r.UID = strings.Repeat("u", maxSize) },
		"longer than a file name can": func(r *grace.Record) { r.Name = strings.Repeat("n", 253) },
	} {
		rec := runningRecord()
		change(&rec)
		if err := s.Put(rec); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, domain := range []string{"", "x", "../shop_db", "shop_../db", "shop_db/x", ".lock", "shop_db\x00"} {
		if err := s.Delete(domain); err == nil {
			t.Errorf("delete of %q: no error", domain)
		}
	}
	wantNames(t, dir)
}

// meeting lets every SyncDir wait until all that are expected are under way.
type meeting struct {
	durable.FS
	missing atomic.Int32
	met     chan struct{}
}

func (m *meeting) SyncDir(dir string) error {
	if m.missing.Add(-1) == 0 {
		close(m.met)
	}
	select {
	case <-m.met:
		return m.FS.SyncDir(dir)
	case <-time.After(waitTimeout):
		return errors.New("waited alone: the writes come one after the other")
	}
}

func TestWritesOfDifferentVMsDoNotWaitForEachOther(t *testing.T) {
	const writers = 16
	s := openStore(t, t.TempDir())
	m := &meeting{FS: s.disk.FS, met: make(chan struct{})}
	m.missing.Store(2 * writers)
	s.disk.FS = m
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			if err := s.Put(named(fmt.Sprintf("put-%d", i))); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := s.Delete(fmt.Sprintf("shop_delete-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// slowFS delays every SyncDir until the test lets it go on.
type slowFS struct {
	durable.FS
	entered, proceed chan struct{}
}

func (f *slowFS) SyncDir(dir string) error {
	f.entered <- struct{}{}
	<-f.proceed
	return f.FS.SyncDir(dir)
}

// A write that ended after Close, or during a Load, would change files that another one
// owns by then.
func TestCloseAndLoadWaitForTheWritesUnderWay(t *testing.T) {
	for name, do := range map[string]func(*Store) error{
		"close": (*Store).Close,
		"load":  func(s *Store) error { _, err := s.Load(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			slow := &slowFS{FS: s.disk.FS, entered: make(chan struct{}), proceed: make(chan struct{})}
			s.disk.FS = slow
			written, done := make(chan error, 1), make(chan error, 1)
			go func() { written <- s.Put(runningRecord()) }()
			<-slow.entered
			go func() { done <- do(s) }()
			select {
			case err := <-done:
				t.Error("did not wait")
				done <- err
			case <-time.After(100 * time.Millisecond):
			}
			close(slow.proceed)
			if err := errors.Join(<-written, <-done); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClosedStoreTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	put(t, s, runningRecord())
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	_, loadErr := s.Load()
	for tried, err := range map[string]error{
		"put": s.Put(named("other")), "delete": s.Delete("shop_db-0.prod"), "load": loadErr,
	} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("%s: error %v, want ErrClosed", tried, err)
		}
	}
	wantNames(t, dir, "shop_db-0.prod.json")
}

func TestASlowDiskHoldsNoMoreThanSomeThreads(t *testing.T) {
	// Given: a disk that takes its time.
	s := openStore(t, t.TempDir())
	slow := &slowFS{FS: s.disk.FS, entered: make(chan struct{}, 3*maxWrites), proceed: make(chan struct{})}
	s.disk.FS = slow
	// When more VMs are written at once than maxWrites.
	written := make(chan error)
	for i := range 3 * maxWrites {
		go func() { written <- s.Put(named(fmt.Sprintf("vm-%d", i))) }()
	}
	for range maxWrites {
		<-slow.entered
	}
	// Then: the others wait without a thread, and all are written in the end.
	select {
	case <-slow.entered:
		t.Errorf("more than %d threads wait for the disk", maxWrites)
	case <-time.After(100 * time.Millisecond):
	}
	close(slow.proceed)
	for range 3 * maxWrites {
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
}
