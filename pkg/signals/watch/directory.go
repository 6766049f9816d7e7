package watch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// View is the state of a launcher directory at one moment. It does not tell when the
// lock's holder started, or whether its end will be seen.
type View struct {
	grace.Directory
	signals.Asking

	// Rejected lists files that cannot be used.
	Rejected []Rejection
}

// Rejection is a file that cannot be used. Reason is one of the constants below, usable
// as a metric's label. Err may contain a tenant's text, for the log only.
type Rejection struct {
	Reason string
	Err    error
}

// The reasons of rejections.
const (
	ReasonVMFile      = "vm_file"
	ReasonVMClaim     = "vm_claim"
	ReasonTriggerFile = "trigger_file"
)

var errSwapped = errors.New("replaced while it was opened")

// lookTries bounds the work for a tenant who replaces vm.json all the time.
const lookTries = 3

// Directory is one launcher directory. Its path is below a base that the tenant cannot
// change. Nothing stays open in it: a launcher's volume can be unmounted at any time.
type Directory struct {
	Base, Name string
	// Namespace and VM name its VM. Pod is the launcher pod's UID, "" without Kubernetes.
	// vm.json cannot change them.
	Namespace, VM, Pod string
}

// Look reads the directory. An error means that nothing is known; a missing
// directory is no error.
func (d Directory) Look() (View, error) {
	root, info, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		return View{}, nil
	}
	if err != nil {
		return View{}, err
	}
	defer root.Close()
	view := View{Directory: grace.Directory{Present: true, ID: idOf(info)}}
	// The trigger first: a shim registers before it asks, so the registration of a
	// trigger that is seen is there too.
	if err := d.lookTrigger(root, &view); err != nil {
		return View{}, err
	}
	for range lookTries {
		err = d.lookVM(root, &view)
		if !errors.Is(err, errSwapped) {
			break
		}
	}
	if err != nil {
		return View{}, err
	}
	return view, nil
}

// open does not follow a link at the directory's own name: it could lead to another
// tenant's directory. It returns the info of the opened directory.
func (d Directory) open() (*os.Root, fs.FileInfo, error) {
	base, err := os.OpenRoot(d.Base)
	if err != nil {
		return nil, nil, fmt.Errorf("open launchers directory: %w", err)
	}
	defer base.Close()
	before, err := base.Lstat(d.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("look at launcher directory: %w", err)
	}
	if !before.IsDir() {
		return nil, nil, fmt.Errorf("launcher directory %s: %w", d.Name, syscall.ENOTDIR)
	}
	root, err := base.OpenRoot(d.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("open launcher directory: %w", err)
	}
	after, err := root.Stat(".")
	if err == nil && !os.SameFile(before, after) {
		err = errSwapped
	}
	if err != nil {
		root.Close()
		return nil, nil, fmt.Errorf("launcher directory %s: %w", d.Name, err)
	}
	return root, after, nil
}

func (d Directory) lookVM(root *os.Root, view *View) error {
	f, info, err := signals.OpenFile(root, signals.FileVM)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, signals.ErrNotRegular):
		view.reject(ReasonVMFile, err)
		return nil
	case err != nil:
		return fmt.Errorf("look at %s: %w", signals.FileVM, err)
	}
	defer f.Close()
	content, err := readWhole(f)
	if err != nil && !errors.Is(err, signals.ErrTooLarge) {
		return err
	}
	view.Registered = true
	view.Holder = grace.Holder{Device: view.ID[0], File: idOf(info)[1], Pod: d.Pod}
	if view.Locked, view.Holder.PID, err = lockOf(f); err != nil {
		return err
	}
	if !view.Locked && !still(root, info) {
		// Its shim has removed it and ended in order; it was not killed.
		view.Registered, view.Holder = false, grace.Holder{}
		return fmt.Errorf("%s: %w", signals.FileVM, errSwapped)
	}
	vm, err := signals.ParseVM(content) // a file that is too large has no content
	switch {
	case err != nil:
		view.reject(ReasonVMFile, err)
	case vm.Namespace != d.Namespace || vm.Name != d.VM:
		view.reject(ReasonVMClaim, fmt.Errorf("%s claims to be %.64q/%.64q", signals.FileVM, vm.Namespace, vm.Name))
	default:
		view.UID, view.Readable, view.Grace, view.Asking = vm.UID, true, vm.Grace, vm.Asking
	}
	return nil
}

// readWhole reads a file that may be rewritten meanwhile. It reads until two results are
// equal, so that old and new content do not mix.
func readWhole(f *os.File) ([]byte, error) {
	content, err := signals.Read(f)
	for range lookTries {
		if err != nil || !bytes.Contains(content, []byte(`"asks"`)) {
			break
		}
		if _, err = f.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("read %s again: %w", f.Name(), err)
		}
		before := content
		if content, err = signals.Read(f); bytes.Equal(content, before) {
			break
		}
	}
	return content, err
}

// still reports whether vm.json is the file that was opened.
func still(root *os.Root, opened fs.FileInfo) bool {
	now, err := root.Lstat(signals.FileVM)
	return err == nil && os.SameFile(opened, now)
}

// lockOf asks who holds a lock on the file, and locks nothing. holder is the pid in our
// pid namespace, 0 if it cannot be seen from here (fcntl(2), F_GETLK).
func lockOf(f *os.File) (locked bool, holder int, err error) {
	query := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &query); err != nil {
		return false, 0, fmt.Errorf("fcntl F_GETLK %s: %w", f.Name(), err)
	}
	if query.Type == unix.F_UNLCK {
		return false, 0, nil
	}
	return true, max(int(query.Pid), 0), nil // -1: an OFD lock
}

func (d Directory) lookTrigger(root *os.Root, view *View) error {
	content, info, err := signals.ReadFile(root, signals.FileTrigger)
	if errors.Is(err, fs.ErrNotExist) {
		content, info, err = signals.ReadFile(root, signals.FileTakenTrigger)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, signals.ErrNotRegular):
		view.reject(ReasonTriggerFile, err)
		return nil
	case err != nil && !errors.Is(err, signals.ErrTooLarge):
		return fmt.Errorf("look at %s: %w", signals.FileTrigger, err)
	}
	view.Trigger, view.TriggerID = true, triggerID(info)
	view.TriggerUID = signals.TriggerUID(content)
	return nil
}

func (v *View) reject(reason string, err error) {
	v.Rejected = append(v.Rejected, Rejection{reason, err})
}

func triggerID(info fs.FileInfo) grace.TriggerID {
	return grace.TriggerID{Inode: idOf(info)[1], Mtime: info.ModTime().UnixNano()}
}

func idOf(info fs.FileInfo) fileID {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return fileID{st.Dev, st.Ino}
	}
	return fileID{}
}
