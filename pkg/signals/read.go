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

// OpenFile opens the file name of a launcher directory for reading without
// trusting it: no link is followed, and nothing but a regular file is opened.
// It returns what was opened, so that a caller can tell it from a later file.
// A file that is not there is fs.ErrNotExist.
func OpenFile(dir *os.Root, name string) (*os.File, os.FileInfo, error) {
	// os.Root follows links that stay inside, whatever the flags, and opening a
	// device has effects: look first.
	seen, err := dir.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !seen.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("open %s: %w (%s)", name, ErrNotRegular, seen.Mode().Type())
	}
	// O_NONBLOCK: a FIFO put there since would block the open for ever.
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !os.SameFile(seen, info) {
		err = fmt.Errorf("open %s: changed while it was opened: %w", name, ErrNotRegular)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
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
