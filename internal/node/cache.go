package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/vmgrace/vmgrace/internal/node/metrics"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

const (
	// diskTimeout is how long the agent's start waits for the state directory.
	diskTimeout = time.Second
	// retakeInterval is how often the state directory is checked for having been
	// removed or replaced.
	retakeInterval = 5 * time.Second
)

// cache is the state directory. It is read first. Writers wait until it is known whether
// writes work.
type cache struct {
	dir   string
	log   *slog.Logger
	meter *metrics.Metrics
	agent recordOwner // set before open

	disk     durable.Disk
	reading  chan taken
	read     atomic.Bool                      // or known to be unreadable
	store    atomic.Pointer[gracecache.Store] // nil until it is taken, by any goroutine
	records  atomic.Int64
	opening  chan error // nil while nothing is under way
	writable chan struct{}
	end      <-chan struct{}
}

// recordOwner takes over the records.
type recordOwner interface {
	Guard(records []grace.Record)
	SaveAgain()
}

type taken struct {
	store  *gracecache.Store
	loaded gracecache.Loaded
	err    error
}

// takeCache begins to read the state directory and waits for the records, but not for a
// disk that hangs.
func (o *Options) takeCache(ctx context.Context, disk durable.Disk, meter *metrics.Metrics, log *slog.Logger) (*cache, []grace.Record, error) {
	c := &cache{dir: o.StateDir, disk: disk, log: log, meter: meter, reading: make(chan taken, 1), writable: make(chan struct{}), end: ctx.Done()}
	go c.take()
	select {
	case t := <-c.reading:
		return c, t.loaded.Records, c.took(t)
	case <-time.After(diskTimeout):
		log.Error("the state directory cannot be read: its disk hangs; new shutdowns are kept in memory, and earlier ones are not known until it answers", "dir", o.StateDir)
		return c, nil, nil
	}
}

func (c *cache) take() {
	store, loaded, err := gracecache.Take(c.disk, c.dir)
	c.reading <- taken{store, loaded, err}
}

func (c *cache) took(t taken) error {
	defer c.read.Store(true)
	if t.err != nil {
		if t.store != nil {
			t.err = errors.Join(t.err, t.store.Close())
		}
		return t.err
	}
	c.store.Store(t.store)
	c.records.Store(int64(len(t.loaded.Records)))
	c.meter.Recovered(len(t.loaded.Records))
	return nil
}

// open makes the directory writable. A disk that hangs is no error: keep waits for it.
func (c *cache) open(context.Context) error {
	if c.opening == nil {
		c.opening = make(chan error, 1)
		go func() { c.opening <- c.makeWritable() }()
	}
	select {
	case err := <-c.opening:
		return c.opened(err)
	case <-time.After(diskTimeout):
		c.log.Error("the state directory cannot be written: its disk hangs; going on from memory", "dir", c.dir)
		return nil
	}
}

func (c *cache) makeWritable() error {
	if c.store.Load() == nil {
		t := <-c.reading
		if err := c.took(t); err != nil {
			go c.take() // for the next try
			return err
		}
		c.log.Info("the state directory is read after all", "records", c.records.Load())
		c.agent.Guard(t.loaded.Records)
	}
	err := c.store.Load().MakeWritable()
	if errors.Is(err, gracecache.ErrLocked) {
		return err
	}
	loaded, loadErr := c.store.Load().Load() // moves aside what cannot be used
	for _, q := range loaded.Quarantined {
		c.meter.Rejected("record")
		c.log.Error("a record is invalid; its file is kept under another name", "file", q.Name, "movedTo", q.MovedTo, "reason", q.Reason)
	}
	return cmp.Or(err, loadErr)
}

// opened lets writers go on. If VMs are recorded it does so even on a disk that refuses
// writes; the writers then report that.
func (c *cache) opened(err error) error {
	c.opening = nil
	if err != nil && (c.store.Load() == nil || c.records.Load() == 0 || errors.Is(err, gracecache.ErrLocked)) {
		return err
	}
	close(c.writable)
	if err != nil {
		c.log.Error("going on from memory, because VMs are recorded here", "err", err)
		c.agent.SaveAgain()
	}
	return nil
}

// keep checks whether the state directory is still the one that was opened, until ctx
// ends. If not, it takes the directory again, and every record is written again, or its
// keeper reports that it cannot be.
func (c *cache) keep(ctx context.Context) error {
	if c.opening != nil {
		select {
		case err := <-c.opening:
			if err := c.opened(err); err != nil {
				return err
			}
			c.log.Info("the disk of the state directory answers again", "dir", c.dir)
		case <-ctx.Done():
			return nil
		}
	}
	tick := time.NewTicker(retakeInterval)
	defer tick.Stop()
	for failing := false; ; {
		taken, err := c.store.Load().Retake()
		switch {
		case taken:
			c.log.Error("the state directory was removed or replaced; it is taken again and every record written anew", "err", err)
			c.meter.Rejected("record_write")
			c.agent.SaveAgain()
		case err != nil && !failing:
			c.log.Error("the state directory cannot be kept; going on from memory", "err", err)
			c.agent.SaveAgain()
		}
		failing = err != nil && !taken
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// ready reports whether records can be written, or are known to be refused.
func (c *cache) ready() bool {
	select {
	case <-c.writable:
		return true
	default:
		return false
	}
}

func (c *cache) close() error {
	if store := c.store.Load(); store != nil {
		return store.Close()
	}
	return nil
}

func (c *cache) wait() error {
	select {
	case <-c.writable:
		return nil
	case <-c.end:
		return fmt.Errorf("state directory %s: the agent ends before its disk answers", c.dir)
	}
}

// Put implements agent.Cache.
func (c *cache) Put(r grace.Record) error {
	if err := c.wait(); err != nil {
		return err
	}
	return c.store.Load().Put(r)
}

// Delete implements agent.Cache.
func (c *cache) Delete(domain string) error {
	if err := c.wait(); err != nil {
		return err
	}
	return c.store.Load().Delete(domain)
}
