//go:build failpoint

package failpoint

import (
	"io/fs"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

type disk struct {
	durable.FS
	*points
}

func (d disk) CreateTemp(dir, pattern string) (durable.File, error) {
	d.step("create")
	f, err := d.FS.CreateTemp(dir, pattern)
	if err != nil {
		return nil, err
	}
	return file{f, d.points}, nil
}

func (d disk) Rename(from, to string) error {
	d.step("rename")
	return d.FS.Rename(from, to)
}

func (d disk) Remove(path string) error {
	d.step("unlink")
	return d.FS.Remove(path)
}

func (d disk) Mkdir(path string, mode fs.FileMode) error {
	d.step("mkdir")
	return d.FS.Mkdir(path, mode)
}

func (d disk) SyncDir(dir string) error {
	d.step("fsyncdir")
	return d.FS.SyncDir(dir)
}

type file struct {
	durable.File
	*points
}

func (f file) Chmod(mode fs.FileMode) error {
	f.step("chmod")
	return f.File.Chmod(mode)
}

// Write has a point in its middle: a process can die with half a record written.
func (f file) Write(data []byte) (int, error) {
	f.step("write")
	n, err := f.File.Write(data[:len(data)/2])
	if err != nil {
		return n, err
	}
	f.step("written-half")
	rest, err := f.File.Write(data[n:])
	return n + rest, err
}

func (f file) Sync() error {
	f.step("fsync")
	return f.File.Sync()
}

func (f file) Close() error {
	f.step("close")
	return f.File.Close()
}

// cache sets the names of the points on the disk.
type cache struct {
	agent.Cache
	*points
}

func (c cache) Put(r grace.Record) error {
	stage := "put-running"
	switch {
	case r.Shutdown.Signalled:
		stage = "put-signalled"
	case r.Shutdown.Requested:
		stage = "put-requested"
	case r.ShuttingDown():
		stage = "put-begun"
	case r.Hold.UnderWay():
		stage = "put-held"
	}
	c.use(stage)
	defer c.At(stage + ".done")
	return c.Cache.Put(r)
}

func (c cache) Delete(domain string) error {
	c.use("delete")
	defer c.At("delete.done")
	return c.Cache.Delete(domain)
}
