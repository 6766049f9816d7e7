package gracecache

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// heldBy returns the process that has locked a file, in our PID namespace, from the
// kernel's list (proc_locks(5)); 0 if unknown. The file's text may be older.
func heldBy(f *os.File, proc string) int {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	locks, err := os.ReadFile(filepath.Join(proc, "locks"))
	if !ok || err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 2: FLOCK  ADVISORY  WRITE 31638 fe:00:10478607 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}

// isEnding reports whether a process was killed and runs no more code of its own. One of
// its threads then has a SIGKILL pending (proc(5)): the kernel gives one to each thread,
// and the thread waits in a call that no signal ends. In doubt the process lives.
func isEnding(pid int, proc string) bool {
	if pid <= 0 {
		return false
	}
	threads, err := filepath.Glob(filepath.Join(proc, strconv.Itoa(pid), "task", "*", "status"))
	if err != nil {
		return false
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			name, mask, _ := strings.Cut(line, ":")
			pending, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			if (name == "SigPnd" || name == "ShdPnd") && err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}
