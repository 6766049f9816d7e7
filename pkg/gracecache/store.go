package gracecache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// extension ends the name of every record; names without it are not ours.
const extension = ".json"

// maxWrites bounds the writes under way: each has an OS thread while the disk
// takes its time (measured: 981 for 1,000 VMs), and more do not make it faster.
const maxWrites = 32

// ErrNotWritable is the error of MakeWritable where no record can be written now.
var ErrNotWritable = errors.New("not writable")

// Store is a state directory that this process has for itself. All methods may
// be used at the same time; each blocks for as long as the disk does.
type Store struct {
	dir  string
	disk durable.Disk
	lock *os.File

	// writes has a place for each write under way.
	writes chan struct{}

	// mu is held shared by every write, so that none waits for another, and
	// alone by whoever must not see a write half done.
	mu     sync.RWMutex
	closed bool
	lost   bool // see ErrLost
}

// Take takes the state directory dir for this process, where it was used before,
// and reads its records. Nothing is written, so that it works on a disk on which
// every write hangs. Before MakeWritable no other method may be called but
// Close.
//
// The error is ErrLocked, without a Store, while another agent has the directory, but not
// where that one was killed and cannot end. Another one says why the records cannot be read; the Store is there.
func Take(disk durable.Disk, dir string) (*Store, Loaded, error) {
	f, err := lock(dir, 0)
	if errors.Is(err, ErrLocked) {
		return nil, Loaded{}, err
	}
	s := &Store{dir: dir, disk: disk, lock: f, lost: true, writes: make(chan struct{}, maxWrites)}
	loaded, err := Read(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		err = nil // the first start, or MakeWritable says why there cannot be one
	}
	return s, loaded, err
}

// MakeWritable creates the directory (mode 0700) and its lock where they are
// missing, removes what killed writers left behind and tries a durable write. It
// is called once, before anything is put, and blocks for as long as the disk
// does.
//
// Errors: ErrLocked, where another agent was quicker; ErrNotWritable for all
// else. Put works as soon as the disk does, after a Retake where it says ErrLost.
func (s *Store) MakeWritable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.closedError("open")
	}
	if err := s.take(s.lock); err != nil {
		return err
	}
	if err := s.tryWrite(); err != nil {
		return notWritable(s.dir, err)
	}
	return nil
}

func notWritable(dir string, err error) error {
	return fmt.Errorf("state directory %s is %w: %w; choose another with --state-dir", dir, ErrNotWritable, err)
}

// tryWrite starts with what an earlier agent has left: it may be what fills the disk.
func (s *Store) tryWrite() error {
	const probe = ".probe"
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var leftovers []string
	for _, e := range entries {
		if durable.IsTemp(e.Name()) && !e.IsDir() {
			leftovers = append(leftovers, e.Name())
		}
	}
	if err := s.disk.Remove(s.dir, leftovers...); err != nil {
		return err
	}
	if err := s.disk.WriteFile(s.dir, probe, []byte("vmgrace\n"), 0o600); err != nil {
		return err
	}
	return s.disk.Remove(s.dir, probe)
}

// Load reads all records. Each file that cannot be trusted is moved aside,
// reported in the result, and stops no other. An error means that the
// directory, or the node, is in no state to say what there is.
func (s *Store) Load() (Loaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Loaded{}, s.closedError("load")
	}
	loaded, err := Read(s.dir)
	for i := range loaded.Quarantined {
		s.quarantine(&loaded.Quarantined[i])
	}
	return loaded, err
}

// Put makes rec the record of its VM. It is on the disk when Put returns nil;
// otherwise the older record stands, unless only the last step, the fsync of
// the directory, failed. Wall clock times are cut to milliseconds. Whatever
// happens, the file is whole; which of two Puts of one VM comes last is the
// caller's business.
func (s *Store) Put(rec grace.Record) error {
	data, err := encode(rec)
	if err != nil {
		return fmt.Errorf("record of %.80q: %w", rec.Domain(), err)
	}
	return s.write("put", func() error {
		return s.disk.WriteFile(s.dir, rec.Domain()+extension, data, 0o600)
	})
}

// Delete removes the record of a domain. It is gone for good when Delete
// returns nil; one that was not there is no error.
func (s *Store) Delete(domain string) error {
	if _, _, ok := grace.SplitDomainName(domain); !ok {
		return fmt.Errorf("delete the record of %.80q: not a VM's domain name", domain)
	}
	return s.write("delete", func() error {
		return s.disk.Remove(s.dir, domain+extension)
	})
}

func (s *Store) write(tried string, do func() error) error {
	s.writes <- struct{}{}
	defer func() { <-s.writes }()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return s.closedError(tried)
	}
	if s.lost {
		return fmt.Errorf("%s in state directory %s: %w", tried, s.dir, ErrLost)
	}
	return do()
}

// Close gives the directory to the next agent, after the writes under way:
// none of them may land in another agent's hands. On a disk that hangs an
// agent ends without it; the kernel then keeps the same order.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}

func (s *Store) closedError(tried string) error {
	return fmt.Errorf("%s in state directory %s: %w", tried, s.dir, fs.ErrClosed)
}
