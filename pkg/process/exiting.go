package process

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
)

// pfExiting is PF_EXITING of the flags in a stat file (linux/sched.h).
const pfExiting = 0x4

// Exiting reports whether the process is exiting, which takes as long as its memory needs
// to be freed. It is false if /proc cannot be read.
func (p *Process) Exiting() bool {
	dir := "/proc/" + strconv.Itoa(p.pid)
	return exiting(dir) && sameStart(dir, p.start)
}

func sameStart(dir string, start uint64) bool {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return false
	}
	now, err := number(stat, 22)
	return err == nil && now == start
}

// exiting reports whether all threads of the process are exiting. One that is not, such
// as a CPU that waits for a disk, keeps a process whose main thread has ended.
func exiting(dir string) bool {
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return false
	}
	found := false
	for _, thread := range threads {
		stat, err := os.ReadFile(filepath.Join(dir, "task", thread.Name(), "stat"))
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		flags, flagsErr := number(stat, 9)
		if err != nil || flagsErr != nil || flags&pfExiting == 0 {
			return false
		}
		found = true
	}
	return found
}
