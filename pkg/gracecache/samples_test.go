package gracecache

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashing) != "" {
		os.Exit(putUntilKilled())
	}
	goleak.VerifyTestMain(m)
}

// open starts as an agent does. It also returns the store with ErrNotWritable if only the
// durable write failed.
func open(disk durable.Disk, dir string) (*Store, error) {
	s, _, err := Take(disk, dir)
	if err != nil && s == nil {
		return nil, err
	}
	err = s.MakeWritable()
	if s.lock == nil {
		return nil, err
	}
	return s, err
}

func runningRecord() grace.Record {
	return grace.Record{
		Namespace: "shop",
		Name:      "db-0.prod",
		UID:       "6f2c1a1e-9d53-4c0b-8a59-0c3f1d2b7e11",
		BootID:    "0b9d3f5e-3a55-4a53-8f0e-4a4c5f6b7d10",
		Period:    grace.Period{Length: 90 * time.Second, Source: grace.SourceVMI},
		Instance:  grace.Instance{UUID: "1c5c0f3a-7a3f-4a4e-9f57-2f6b8f0f6a01", PID: 48213, Start: 9318275},
		Launcher:  grace.Holder{PID: 48190, Start: 9318201, File: 1048603},
	}
}

func shutdownRecord() grace.Record {
	rec := runningRecord()
	rec.Period.Length = 1500 * time.Millisecond
	rec.Shutdown = grace.Shutdown{
		Cause:      grace.LauncherSignal,
		Start:      93_201_455_001_234,
		Deadline:   93_202_955_001_234,
		StartedAt:  time.Date(2026, 3, 1, 12, 30, 15, 250_000_000, time.UTC),
		DeadlineAt: time.Date(2026, 3, 1, 12, 30, 16, 750_000_000, time.UTC),
		Requested:  true,
	}
	return rec
}

func heldRecord() grace.Record {
	rec := runningRecord()
	rec.Hold = grace.Hold{
		Reason: grace.PreemptionByScheduler, Leaving: true,
		Start: 93_201_455_001_234, Until: 93_321_455_001_234,
		StartedAt: time.Date(2026, 3, 1, 12, 30, 15, 250_000_000, time.UTC),
		UntilAt:   time.Date(2026, 3, 1, 12, 32, 15, 250_000_000, time.UTC),
	}
	return rec
}

// named returns a running record of another VM.
func named(name string) grace.Record {
	rec := runningRecord()
	rec.Name = name
	return rec
}

func openStore(tb testing.TB, dir string) *Store {
	tb.Helper()
	s, err := open(durable.Real(), dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func put(tb testing.TB, s *Store, recs ...grace.Record) {
	tb.Helper()
	for _, rec := range recs {
		if err := s.Put(rec); err != nil {
			tb.Fatal(err)
		}
	}
}

func load(tb testing.TB, s *Store) Loaded {
	tb.Helper()
	loaded, err := s.Load()
	if err != nil {
		tb.Fatal(err)
	}
	return loaded
}

func write(tb testing.TB, dir, name string, data []byte) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		tb.Fatal(err)
	}
}

func encoded(tb testing.TB, rec grace.Record) []byte {
	tb.Helper()
	data, err := encode(rec)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func wantRecords(tb testing.TB, got []grace.Record, want ...grace.Record) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("records (-want +got):\n%s", diff)
	}
}

// names returns everything in dir except the lock.
func names(tb testing.TB, dir string) []string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	found := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Name() != lockName {
			found = append(found, e.Name())
		}
	}
	return found
}

func wantNames(tb testing.TB, dir string, want ...string) {
	tb.Helper()
	if diff := cmp.Diff(want, names(tb, dir), cmpopts.EquateEmpty()); diff != "" {
		tb.Errorf("names in the directory (-want +got):\n%s", diff)
	}
}
