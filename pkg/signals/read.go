package signals

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that a link, directory, FIFO or device stands where a file should.
var ErrNotRegular = errors.New("not a regular file")

// OpenFile opens the file name of a launcher directory for reading without
// trusting it: no link is followed, and nothing but a regular file is opened.
// It returns what was opened, so that a caller can tell it from a later file.
// A file that is not there is fs.ErrNotExist.
func OpenFile(dir *os.Root, name string) (*os.File, os.FileInfo, error) {
	found, info, err := find(dir, name)
	if err != nil {
		return nil, nil, err
	}
	defer found.Close() // nothing was written through it
	f, err := reopen(found, name)
	return f, info, err
}

// find finds a regular file, which is then to be closed.
func find(dir *os.Root, name string) (*os.File, os.FileInfo, error) {
	// Opening a device has effects, and a look beforehand can be outrun by a
	// rename. An O_PATH descriptor opens nothing, and stays with what it found
	// (open(2)); with O_NOFOLLOW that may be a link itself.
	found, err := dir.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := found.Stat()
	if err != nil {
		err = fmt.Errorf("stat %s: %w", name, err)
	} else if !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %w (%s)", name, ErrNotRegular, info.Mode().Type())
	}
	if err != nil {
		return nil, nil, errors.Join(err, found.Close())
	}
	return found, info, nil
}

// reopen opens for reading what an O_PATH descriptor stands for.
func reopen(found *os.File, name string) (*os.File, error) {
	// O_NONBLOCK: a lease that somebody holds would block the open (fcntl(2)).
	path := fmt.Sprintf("/proc/self/fd/%d", found.Fd())
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	runtime.KeepAlive(found)
	if err != nil {
		// Not wrapped: without /proc it would say that the file is not there.
		return nil, fmt.Errorf("open %s by its descriptor: %s", name, err.Error())
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Read reads what OpenFile opened; ErrTooLarge comes after MaxSize bytes.
func Read(f *os.File) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	if len(content) > MaxSize {
		return nil, fmt.Errorf("read %s: %w", f.Name(), ErrTooLarge)
	}
	return content, nil
}

// ReadFile is OpenFile and Read. An empty file is not opened: there is nothing
// to read.
func ReadFile(dir *os.Root, name string) ([]byte, os.FileInfo, error) {
	found, info, err := find(dir, name)
	if err != nil {
		return nil, nil, err
	}
	defer found.Close() // nothing was written through it
	if info.Size() == 0 {
		return nil, info, nil
	}
	f, err := reopen(found, name)
	if err != nil {
		return nil, info, err
	}
	defer f.Close()
	content, err := Read(f)
	return content, info, err
}
