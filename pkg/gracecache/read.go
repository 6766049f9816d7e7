package gracecache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// nameMax is NAME_MAX of every file system that matters (limits.h).
const nameMax = 255

// Loaded is what a state directory holds, in the order of the file names.
type Loaded struct {
	Records     []grace.Record
	Quarantined []Quarantined
}

// Quarantined is a file that cannot be trusted.
type Quarantined struct {
	// Name of the file in the state directory, as it was found.
	Name string
	// MovedTo is its new name; "" if it was not moved: by Read, or because that failed,
	// as Reason then says.
	MovedTo string
	Reason  error
}

// Read reads a state directory without changing it. It takes no lock and moves nothing,
// so it works beside a running agent and after a dead one. For a missing directory
// errors.Is reports fs.ErrNotExist.
func Read(dir string) (Loaded, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Loaded{}, fmt.Errorf("read state directory %s: %w", dir, err)
	}
	return readAll(dir, entries)
}

func readAll(dir string, entries []fs.DirEntry) (Loaded, error) {
	var loaded Loaded
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), extension) {
			continue
		}
		rec, err := readRecord(dir, e)
		switch {
		case err == nil:
			loaded.Records = append(loaded.Records, rec)
		case errors.Is(err, fs.ErrNotExist):
			// Its VM stopped since the directory was listed.
		case isShortage(err):
			return Loaded{}, fmt.Errorf("read state directory %s: %w", dir, err)
		default:
			loaded.Quarantined = append(loaded.Quarantined, Quarantined{Name: e.Name(), Reason: err})
		}
	}
	return loaded, nil
}

// isShortage reports whether an error comes from the node and says nothing about the
// file. A good record must not be moved aside for it.
func isShortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

func readRecord(dir string, e fs.DirEntry) (grace.Record, error) {
	if !e.Type().IsRegular() {
		return grace.Record{}, notRegular(e.Type())
	}
	data, err := readRegular(filepath.Join(dir, e.Name()))
	if err != nil {
		return grace.Record{}, err
	}
	rec, err := decode(data)
	if err != nil {
		return grace.Record{}, err
	}
	if name := rec.Domain() + extension; name != e.Name() {
		return grace.Record{}, fmt.Errorf("the record belongs in %s", name)
	}
	return rec, nil
}

func notRegular(mode fs.FileMode) error {
	return fmt.Errorf("not a regular file (%s)", mode.Type())
}

// readRegular reads at most one byte more than is allowed, so that decode sees a file
// that is too long. It follows no link and does not block in open, even if the file was
// replaced since the directory was listed.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing was written through it
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(info.Mode())
	}
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}

// quarantine moves a file aside, to an unused name. The caller is alone in the directory.
func (s *Store) quarantine(q *Quarantined) {
	target, err := s.freeName(q.Name)
	if err == nil {
		err = s.disk.Rename(s.dir, q.Name, target)
	}
	if err != nil {
		q.Reason = fmt.Errorf("%w; moving it aside: %w", q.Reason, err)
		return
	}
	q.MovedTo = target
}

func (s *Store) freeName(name string) (string, error) {
	for n := 0; ; n++ {
		suffix := ".quarantined"
		if n > 0 {
			suffix = fmt.Sprintf("%s-%d", suffix, n)
		}
		target := name[:min(len(name), nameMax-len(suffix))] + suffix
		switch _, err := os.Lstat(filepath.Join(s.dir, target)); {
		case errors.Is(err, fs.ErrNotExist):
			return target, nil
		case err != nil:
			return "", fmt.Errorf("look for a free name: %w", err)
		}
	}
}
