package signals

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

const registerIn = "SIGNALS_TEST_REGISTER_IN"

// TestMain also plays another process: a process does not see its own locks.
func TestMain(m *testing.M) {
	dir := os.Getenv(registerIn)
	if dir == "" {
		os.Exit(m.Run())
	}
	for range 3000 {
		s := NewSender(dir, testVM)
		if err := errors.Join(s.Register(), s.Withdraw()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// An unlocked vm.json is the mark of a killed shim.
func TestVMFileIsNeverSeenUnlockedFromItsFirstMomentToItsLast(t *testing.T) {
	self, err := os.Executable()
	kit.Must(t, err)
	dir := t.TempDir()
	other := exec.Command(self)
	other.Env = append(os.Environ(), registerIn+"="+dir)
	other.Stderr = os.Stderr
	kit.Must(t, other.Start())
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	for seen := 0; ; {
		select {
		case err := <-ended:
			kit.Must(t, err)
			if seen == 0 {
				t.Error("vm.json was never seen")
			}
			return
		default:
		}
		locked, there := look(t, filepath.Join(dir, FileVM), other.Process.Pid)
		if there {
			seen++
		}
		if there && !locked {
			_ = other.Process.Kill() // the failure is what counts
			t.Fatalf("vm.json was there without its lock, after %d looks", seen)
		}
	}
}

// look returns there only for a file that still had its name after the question.
func look(t *testing.T, path string, holder int) (locked, there bool) {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false
	}
	kit.Must(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	kit.Must(t, unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock))
	opened, err := f.Stat()
	kit.Must(t, err)
	now, err := os.Lstat(path)
	return lock.Type == unix.F_WRLCK && int(lock.Pid) == holder, err == nil && os.SameFile(opened, now)
}
