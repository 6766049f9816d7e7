package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidFile is a file with the pid of the VM process, which may come later.
type pidFile struct {
	path string
	// former is the file as it was before our command was started: its pid is an earlier
	// container's. A file that was written since has another time or is another file.
	former fs.FileInfo
	// last is a text without a newline: its writer may not have finished.
	last string
}

// read returns 0 while there is no pid yet. The time is the file's last change. An
// error is worth a line; the file may become valid later.
func (p *pidFile) read() (pid int, written time.Time, err error) {
	text, info, err := readSmall(p.path)
	before := p.last
	p.last = ""
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && (text == "" || p.former != nil && os.SameFile(p.former, info) && p.former.ModTime().Equal(info.ModTime())):
		return 0, time.Time{}, nil
	case err != nil:
		return 0, time.Time{}, fmt.Errorf("pid file: %w", err)
	case !strings.HasSuffix(text, "\n") && text != before:
		p.last = text
		return 0, time.Time{}, nil
	}
	if pid, err = parsePID(strings.TrimSpace(text)); err != nil {
		return 0, time.Time{}, fmt.Errorf("pid file %s: %w", p.path, err)
	}
	return pid, info.ModTime(), nil
}

var (
	errNoPID      = errors.New("not the pid of a VM process")
	errNotRegular = errors.New("not a regular file")
)

// parsePID rejects a pid that cannot be the VM process.
func parsePID(text string) (int, error) {
	pid, err := strconv.ParseUint(text, 10, 31)
	if err != nil || pid == 0 || int(pid) == os.Getpid() {
		return 0, fmt.Errorf("%.20q: %w", text, errNoPID)
	}
	return int(pid), nil
}

// readSmall reads a short regular file. O_NONBLOCK: a FIFO would block the
// open, and with it everything else.
func readSmall(path string) (string, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() {
		return "", nil, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	content, err := io.ReadAll(io.LimitReader(f, 64))
	return string(content), info, err
}
