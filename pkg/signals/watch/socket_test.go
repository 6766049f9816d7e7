package watch

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// launcherDir is a launcher directory, and the path of the agent's socket in it.
func launcherDir(t *testing.T) (Directory, string) {
	t.Helper()
	base := t.TempDir()
	kit.Must(t, os.Mkdir(filepath.Join(base, "l"), 0o755))
	return Directory{Base: base, Name: "l", Namespace: "ns", VM: "vm"}, filepath.Join(base, "l", signals.FileMigration)
}

// connects reports whether somebody listens at the path.
func connects(path string) bool {
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

func TestAMigrationsSocketIsForOneConnectionOfAnybodys(t *testing.T) {
	// Given
	d, path := launcherDir(t)
	l, err := d.Listen()
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, l.Close()) }) // again
	info, err := os.Lstat(path)
	kit.Must(t, err)
	if info.Mode() != fs.ModeSocket|0o666 {
		t.Errorf("its mode is %v", info.Mode())
	}
	// When
	there, err := net.Dial("unix", path)
	kit.Must(t, err)
	here, err := l.Accept()
	kit.Must(t, err)
	// Then
	_, err = there.Write([]byte("x"))
	kit.Must(t, err)
	if n, err := here.Read(make([]byte, 2)); n != 1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it stays after its connection: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second connection: %v", err)
	}
	kit.Must(t, errors.Join(here.Close(), there.Close()))
}

func TestWhateverATenantPutThereIsReplacedOrRefused(t *testing.T) {
	for name, c := range map[string]struct {
		put     func(path, target string) error
		refused bool
	}{
		"a file":               {put: func(path, _ string) error { return os.WriteFile(path, nil, 0o600) }},
		"a link":               {put: func(path, target string) error { return os.Symlink(target, path) }},
		"a link to nowhere":    {put: func(path, target string) error { return os.Symlink(target+".none", path) }},
		"a FIFO":               {put: func(path, _ string) error { return unix.Mkfifo(path, 0o600) }},
		"an empty directory":   {put: func(path, _ string) error { return os.Mkdir(path, 0o700) }},
		"a directory in use":   {put: func(path, _ string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }, refused: true},
		"a socket of a crash":  {put: leftSocket},
		"nothing":              {put: func(string, string) error { return nil }},
		"a link to a launcher": {put: func(path, target string) error { return os.Symlink(filepath.Dir(target), path) }},
	} {
		t.Run(name, func(t *testing.T) {
			// Given a file of somebody else's, and what a tenant has put there
			d, path := launcherDir(t)
			target := filepath.Join(t.TempDir(), "target")
			kit.Must(t, os.WriteFile(target, []byte("theirs"), 0o600))
			kit.Must(t, c.put(path, target))
			// When
			l, err := d.Listen()
			// Then
			if (err != nil) != c.refused {
				t.Fatalf("%v", err)
			}
			if err == nil && !connects(path) {
				t.Error("nobody listens")
			}
			info, statErr := os.Stat(target)
			kit.Must(t, statErr)
			if info.Mode() != 0o600 || info.Size() != 6 {
				t.Errorf("what is elsewhere has changed: %v", info)
			}
			if err != nil {
				return
			}
			kit.Must(t, l.Close())
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it stays: %v", err)
			}
		})
	}
}

// leftSocket leaves a socket that nobody listens at.
func leftSocket(path, _ string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func TestAListenerRemovesNoSocketButItsOwn(t *testing.T) {
	d, path := launcherDir(t)
	former, err := d.Listen()
	kit.Must(t, err)
	later, err := d.Listen()
	kit.Must(t, err)
	// When
	kit.Must(t, former.Close())
	// Then
	if !connects(path) {
		t.Error("the later one cannot be reached")
	}
	// When a tenant has replaced it
	kit.Must(t, os.Remove(path))
	kit.Must(t, os.WriteFile(path, nil, 0o600))
	kit.Must(t, later.Close())
	// Then what is there is the tenant's
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func TestAListenersDirectoryMayGo(t *testing.T) {
	d, path := launcherDir(t)
	l, err := d.Listen()
	kit.Must(t, err)
	kit.Must(t, os.RemoveAll(filepath.Dir(path)))
	kit.Must(t, l.Close())
	if _, err := d.Listen(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a socket in no directory: %v", err)
	}
	kit.Must(t, os.Symlink(t.TempDir(), filepath.Dir(path)))
	if _, err := d.Listen(); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a socket behind a link: %v", err)
	}
}
