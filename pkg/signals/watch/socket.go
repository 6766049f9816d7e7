package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

var errNotSocket = errors.New("replaced by something that is not the agent's socket")

// Listen makes the socket of a migration, in place of whatever has its name. Every user may
// connect, because a launcher need not be root; only its pod sees the directory. The listener
// takes one connection. Its Close removes the socket, and no other.
//
// The socket keeps the launcher's volume mounted until listener and connection are closed.
func (d Directory) Listen() (net.Listener, error) {
	root, _, err := d.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := root.Remove(signals.FileMigration); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make room for %s: %w", signals.FileMigration, err)
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", signals.FileMigration, err)
	}
	defer dir.Close()
	// bind(2) follows no link at the last name, and takes no name that is there.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), signals.FileMigration)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", signals.FileMigration, err)
	}
	l.SetUnlinkOnClose(false) // the path means nothing once dir is closed
	id, err := openToAll(root)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make %s: %w", signals.FileMigration, err), l.Close())
	}
	return &oneListener{UnixListener: l, dir: d, id: id}, nil
}

// openToAll lets every user connect to the socket. It changes nothing but a socket of this
// user's: its owner is checked on the descriptor that is changed.
func openToAll(root *os.Root) (fileID, error) {
	f, err := root.OpenFile(signals.FileMigration, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fileID{}, err
	}
	defer f.Close() // nothing was written through it
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, fmt.Errorf("stat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
		return fileID{}, errNotSocket
	}
	const everyone = 0o666
	if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), everyone); err != nil {
		return fileID{}, fmt.Errorf("chmod: %w", err)
	}
	return fileID{st.Dev, st.Ino}, nil
}

// oneListener listens for one connection.
type oneListener struct {
	*net.UnixListener

	dir  Directory
	id   fileID
	once sync.Once
	err  error // of Close
}

// Accept implements net.Listener. It ends the listener.
func (l *oneListener) Accept() (net.Conn, error) {
	c, err := l.UnixListener.Accept()
	if err != nil {
		return nil, err
	}
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close implements net.Listener. It may be called again.
func (l *oneListener) Close() error {
	l.once.Do(func() { l.err = errors.Join(l.UnixListener.Close(), l.remove()) })
	return l.err
}

// remove removes the socket if it still has its name. The directory may be gone.
func (l *oneListener) remove() error {
	root, _, err := l.dir.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Lstat(signals.FileMigration)
	if errors.Is(err, fs.ErrNotExist) || err == nil && idOf(info) != l.id {
		return nil
	}
	if err == nil {
		err = root.Remove(signals.FileMigration)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", signals.FileMigration, err)
	}
	return nil
}
