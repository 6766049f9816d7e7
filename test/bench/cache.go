package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// A round of row h.
const (
	singlePuts  = 200
	crowdedPuts = 1000
	writers     = 100
)

// cache is row h.
func cache(b *bench) []figure {
	f := figure{row: "h", unit: seconds}
	sync, put, crowd := f, f, f
	sync.what = "what write + fsync costs here"
	put.what, put.target = "grace cache: one put", "≤ 1.2 × floor"
	crowd.what, crowd.target = fmt.Sprintf("grace cache: %d puts by %d writers, per second; floor: serially", crowdedPuts, writers), "≥ 5 × floor where an fsync costs ≥ 1 ms"
	crowd.unit = perSecond
	size := b.recordSize()
	for range b.rounds {
		sync.floor = append(sync.floor, b.fsync(size))
		dir := b.temp()
		store, _, err := gracecache.Take(durable.Real(), dir)
		if err == nil {
			err = store.MakeWritable()
		}
		b.must(err)
		// In small turns, so that what else the disk does hits both.
		var ours, floor []float64
		const turn = singlePuts / 10
		for n := 0; n < singlePuts; n += turn {
			for i := range turn {
				rec := b.record(n+i, grace.Instance{UUID: "u", PID: 1, Start: 1})
				begin := time.Now()
				b.must(store.Put(rec))
				ours = append(ours, time.Since(begin).Seconds())
			}
			floor = append(floor, b.floorPuts(turn, size)...)
		}
		put.ours, put.floor = append(put.ours, median(ours)), append(put.floor, median(floor))
		crowd.ours = append(crowd.ours, b.crowd(store))
		total := 0.0
		for _, took := range b.floorPuts(crowdedPuts, size) {
			total += took
		}
		crowd.floor = append(crowd.floor, crowdedPuts/total)
		b.must(store.Close())
	}
	return []figure{sync, put, crowd}
}

// record is one in mid-grace that ends in an hour.
func (b *bench) record(n int, i grace.Instance) grace.Record {
	now, wall := b.now(), time.Now()
	return grace.Record{
		Namespace: "vmgrace-bench", Name: fmt.Sprintf("vm-%d", n), UID: fmt.Sprintf("b7c6a1d2-0000-4000-8000-%012d", n), BootID: b.bootID(),
		Period: grace.Period{Length: time.Hour, Source: grace.SourceDefault}, Instance: i,
		Shutdown: grace.Shutdown{Cause: grace.LauncherSignal, Start: now, Deadline: now.Add(time.Hour), StartedAt: wall, DeadlineAt: wall.Add(time.Hour)},
	}
}

// crowd is how many puts a second many writers get done.
func (b *bench) crowd(store *gracecache.Store) float64 {
	records := make([]grace.Record, 0, crowdedPuts)
	for n := range crowdedPuts {
		records = append(records, b.record(n, grace.Instance{UUID: "u", PID: 1, Start: 1}))
	}
	var group errgroup.Group
	begin := time.Now()
	for w := range writers {
		group.Go(func() error {
			for n := w; n < crowdedPuts; n += writers {
				if err := store.Put(records[n]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.must(group.Wait())
	return crowdedPuts / time.Since(begin).Seconds()
}

// floorPuts is what each durable write of the floor took, in seconds.
func (b *bench) floorPuts(n, size int) []float64 {
	argv := b.floor("put", b.temp(), strconv.Itoa(n), strconv.Itoa(size))
	out, err := exec.CommandContext(b.Context(), argv[0], argv[1:]...).Output()
	b.must(err)
	took, err := nanoseconds(bufio.NewScanner(bytes.NewReader(out)))
	b.must(err)
	return took
}

// recordSize is the length of a record's file.
func (b *bench) recordSize() int {
	dir := b.temp()
	store, _, err := gracecache.Take(durable.Real(), dir)
	if err == nil {
		err = store.MakeWritable()
	}
	b.must(err)
	rec := b.record(0, grace.Instance{UUID: "u", PID: 1, Start: 1})
	b.must(store.Put(rec))
	b.must(store.Close())
	return int(b.size(filepath.Join(dir, rec.Domain()+".json")))
}

// fsync is the median of some writes with fsync to one file.
func (b *bench) fsync(size int) float64 {
	f, err := os.Create(filepath.Join(b.temp(), "fsync"))
	b.must(err)
	defer f.Close()
	var took []float64
	for range singlePuts {
		begin := time.Now()
		_, err := f.Write(make([]byte, size))
		b.must(err)
		b.must(f.Sync())
		took = append(took, time.Since(begin).Seconds())
	}
	return median(took)
}
