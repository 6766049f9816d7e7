package deadline

// #include "thread.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const journalSize = int(unsafe.Sizeof(C.struct_journal{}))

// signalled is a process by pid and start time (pkg/process).
type signalled struct{ pid, start uint64 }

// journal is memory that outlives the agent, but not the boot: the thread notes
// there whom it signals, just before it does. A record says so only after the
// signal, and an agent can be killed between the two.
type journal struct {
	memory []byte // of the file, shared
	before map[signalled]bool
}

// openJournal maps the file at path, which has to be on a tmpfs: on a disk that
// hangs a write to it would wait. All of it is allocated before, or a full tmpfs
// would end the agent (SIGBUS, mmap(2)).
func openJournal(path string) (*journal, error) {
	// In a directory of everybody's: no link is followed, no file of another's taken,
	// and a lease on one is not waited for (fcntl(2)).
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the journal of signals: %w", err)
	}
	defer f.Close() // the mapping stays
	if err := checkJournal(f); err != nil {
		return nil, fmt.Errorf("the journal of signals, %s: %w", path, err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, journalSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("the journal of signals: mmap %s: %w", path, err)
	}
	j := &journal{memory: memory, before: map[signalled]bool{}}
	c := j.shared()
	for _, e := range c.entries[:min(uint64(c.count), uint64(len(c.entries)))] {
		j.before[signalled{uint64(e.pid), uint64(e.start)}] = true
	}
	return j, nil
}

func checkJournal(f *os.File) error {
	var stat unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &stat), unix.Fstatfs(int(f.Fd()), &fs)); err != nil {
		return err
	}
	switch {
	case fs.Type != unix.TMPFS_MAGIC:
		return errors.New("not on a tmpfs")
	case stat.Mode != unix.S_IFREG|0o600 || int(stat.Uid) != os.Geteuid() || stat.Nlink != 1:
		return errors.New("not a file of the agent's alone: remove it")
	}
	return unix.Fallocate(int(f.Fd()), 0, 0, int64(journalSize))
}

func (j *journal) shared() *C.struct_journal {
	if j == nil {
		return nil
	}
	return (*C.struct_journal)(unsafe.Pointer(unsafe.SliceData(j.memory)))
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return unix.Munmap(j.memory)
}
