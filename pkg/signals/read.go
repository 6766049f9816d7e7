package signals

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrNotRegular says that a link, directory, FIFO or device stands where a file should.
var ErrNotRegular = errors.New("not a regular file")

// ReadFile reads the file name of a launcher directory without trusting it: no
// link is followed, nothing but a regular file is opened, and ErrTooLarge
// comes after MaxSize bytes. It returns the file read, so that a caller can
// tell it from a later one. A file that is not there is fs.ErrNotExist.
func ReadFile(dir *os.Root, name string) ([]byte, os.FileInfo, error) {
	// os.Root follows links that stay inside, whatever the flags: look first.
	seen, err := dir.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !seen.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("read %s: %w", name, ErrNotRegular)
	}
	// O_NONBLOCK: a FIFO put there since would block the open for ever.
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("stat %s: %w", name, err)
	}
	if !os.SameFile(seen, info) {
		return nil, nil, fmt.Errorf("read %s: changed while it was opened: %w", name, ErrNotRegular)
	}
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(content) > MaxSize {
		return nil, nil, fmt.Errorf("read %s: %w", name, ErrTooLarge)
	}
	return content, info, nil
}
