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

// pidFile waits for a file with the pid of the VM process.
type pidFile struct {
	path string
	// last is a text without a newline: its writer may be in the middle of it.
	last string

	hints *hints
	next  *time.Timer // of the next look
}

func newPIDFile(path string) *pidFile {
	return &pidFile{path: path, hints: newHints(), next: time.NewTimer(0)}
}

func (p *pidFile) close() {
	p.hints.close()
	p.next.Stop()
}

// hint has the file looked at, once for all the hints that come meanwhile.
func (p *pidFile) hint() {
	p.hints.disarm()
	p.next.Reset(settleInterval)
}

// poll has it looked at again soon, without a hint.
func (p *pidFile) poll() { p.next.Reset(pollInterval) }

// look returns 0 while there is no pid yet, and sets the time of the next look.
// The time is the file's last change. An error is worth a line; the file may
// become valid later.
func (p *pidFile) look() (pid int, written time.Time, err error) {
	unheard := p.hints.arm(p.path) // before the file is read: what comes later makes a hint
	pid, written, err = p.read()
	p.next.Reset(restInterval)
	if unheard != nil || p.last != "" || err != nil && !lasting(err) {
		p.poll()
	}
	if unheard != nil {
		err = errors.Join(err, fmt.Errorf("cannot hear of the pid file, looking for it every %v: %w", pollInterval, unheard))
	}
	return pid, written, err
}

func (p *pidFile) read() (pid int, written time.Time, err error) {
	text, written, err := readSmall(p.path)
	before := p.last
	p.last = ""
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && text == "":
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
	return pid, written, nil
}

var (
	errNoPID      = errors.New("not the pid of a VM process")
	errNotRegular = errors.New("not a regular file")
)

// lasting tells errors that go only with a change that makes a hint.
func lasting(err error) bool {
	return errors.Is(err, errNoPID) || errors.Is(err, errNotRegular) || errors.Is(err, syscall.ELOOP)
}

// parsePID refuses what could not be the VM process.
func parsePID(text string) (int, error) {
	pid, err := strconv.ParseUint(text, 10, 31)
	if err != nil || pid == 0 || int(pid) == os.Getpid() {
		return 0, fmt.Errorf("%.20q: %w", text, errNoPID)
	}
	return int(pid), nil
}

// readSmall reads a short regular file. O_NONBLOCK: a FIFO would block the
// open, and with it everything else.
func readSmall(path string) (string, time.Time, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", time.Time{}, err
	}
	if !info.Mode().IsRegular() {
		return "", time.Time{}, fmt.Errorf("%s: %w", path, errNotRegular)
	}
	content, err := io.ReadAll(io.LimitReader(f, 64))
	return string(content), info.ModTime(), err
}
