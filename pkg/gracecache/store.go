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

// maxWrites bounds the concurrent writes. Each has an OS thread while the disk takes its
// time (measured: 981 for 1,000 VMs), and more do not make it faster.
const maxWrites = 32

// ErrNotWritable is the error of MakeWritable if no record can be written now.
var ErrNotWritable = errors.New("not writable")

// Store is a state directory that only this process uses. All methods may be used at the
// same time; each blocks for as long as the disk does.
type Store struct {
	dir  string
	disk durable.Disk
	lock *os.File

	// writes has a place for each write under way.
	writes chan struct{}

	// mu is held shared by every write, so that writes run in parallel. Whoever must not
	// see a half-done write holds it alone.
	mu     sync.RWMutex
	closed bool
	lost   bool // see ErrLost
}

// Take takes the state directory dir for this process, if it was used before, and reads
// its records. It writes nothing, so it works on a disk on which every write hangs.
// Before MakeWritable only Close may be called.
//
// The error is ErrLocked, without a Store, while another agent has the directory, unless
// that one was killed and cannot end. Any other error says why the records cannot be
// read, and comes with a Store.
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

// MakeWritable creates a missing directory (mode 0700) and lock, removes what killed
// writers left behind and tries a durable write. Call it once, before the first Put. It
// blocks for as long as the disk does.
//
// Errors: ErrLocked if another agent was quicker; ErrNotWritable for all else. Put works
// as soon as the disk does; after ErrLost call Retake first.
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

// tryWrite first removes an earlier agent's leftovers: they may be what fills the disk.
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

// Load reads all records. A file that cannot be trusted is moved aside and reported in
// the result; the others are still read. An error means that the directory or the node
// cannot tell which records exist.
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

// Put makes rec the record of its VM. It is on the disk when Put returns nil. Otherwise
// the older record stands, unless only the last step, the fsync of the directory, failed.
// Wall clock times are cut to milliseconds. The file is always whole. The caller has to
// order two Puts of one VM.
func (s *Store) Put(rec grace.Record) error {
	data, err := encode(rec)
	if err != nil {
		return fmt.Errorf("record of %.80q: %w", rec.Domain(), err)
	}
	return s.write("put", func() error {
		return s.disk.WriteFile(s.dir, rec.Domain()+extension, data, 0o600)
	})
}

// Delete removes the record of a domain. It is gone for good when Delete returns nil. A
// missing one is no error.
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

// Close releases the directory to the next agent after the writes under way: none may
// land in another agent's directory. On a disk that hangs an agent ends without Close;
// the kernel then keeps the same order.
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
