package signals

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular says that a link, directory, FIFO or device stands where a file should.
var ErrNotRegular = errors.New("not a regular file")

// OpenFile opens the file name of a launcher directory for reading without trusting it.
// It follows no link and opens only a regular file. It returns the opened file's info, so
// that a caller can tell it from a later file. The error for a missing file is
// fs.ErrNotExist.
func OpenFile(dir *os.Root, name string) (*os.File, os.FileInfo, error) {
	// Opening a device has effects, and a rename can outrun a look beforehand. An O_PATH
	// descriptor opens nothing, and stays with what it found (open(2)). With O_NOFOLLOW
	// that may be a link itself.
	found, err := dir.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	defer found.Close() // nothing was written through it
	info, err := found.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("stat %s: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("open %s: %w (%s)", name, ErrNotRegular, info.Mode().Type())
	}
	// O_NONBLOCK: a lease that somebody holds would block the open (fcntl(2)).
	path := fmt.Sprintf("/proc/self/fd/%d", found.Fd())
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		// Not wrapped: without /proc the error would mean that the file is missing.
		return nil, nil, fmt.Errorf("open %s by its descriptor: %s", name, err.Error())
	}
	return os.NewFile(uintptr(fd), name), info, nil
}

// Read reads a file from OpenFile; ErrTooLarge comes after MaxSize bytes.
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

// ReadFile is OpenFile and Read.
func ReadFile(dir *os.Root, name string) ([]byte, os.FileInfo, error) {
	f, info, err := OpenFile(dir, name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	content, err := Read(f)
	return content, info, err
}
