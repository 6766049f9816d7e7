package signals

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Files become visible by rename from these names, which the agent ignores. They are
// fixed, so that a killed shim's leftovers cannot pile up.
const (
	tempVM      = ".vm.json.new"
	tempTrigger = ".shutdown.new"
)

const (
	// spareSize holds any Trigger with a valid uid; the rest is padding.
	spareSize = 512
	// askingSize holds the vm.json of a launcher that asks its guest itself. That file is
	// rewritten in place.
	askingSize = 4096
)

// Sender is the shim's end of a launcher directory. The directory may be missing, late,
// full, read-only or replaced at any time. A call that fails does what it can; repeat it
// until it succeeds. Only one goroutine at a time may use a Sender.
type Sender struct {
	dir  string
	vm   VM
	sent bool

	root *os.Root // dir, once it was found and cleared
	// lock is our vm.json. Closing any descriptor of that file in this process
	// drops the lock (fcntl(2)), so the file is never opened again.
	lock *os.File
	// spare is a trigger written in advance: on a full disk a rename still works.
	spare *os.File
	// before is the status for an earlier launcher, found with the directory. beforeFile
	// is its file, nil if there was none.
	before     statusFile
	beforeFile fs.FileInfo
}

// NewSender does nothing yet. The vm's uid must be a ValidUID.
func NewSender(dir string, vm VM) *Sender { return &Sender{dir: dir, vm: vm} }

// Register clears an earlier launcher's trigger (see clear), makes vm.json appear,
// locked, and prepares the trigger. If all of that is done already, it costs a few stat
// calls.
func (s *Sender) Register() error {
	if err := s.open(); err != nil {
		return err
	}
	return s.complete()
}

// Send completes the registration and writes the trigger, only once however often it is
// called. The error may be one of the registration alone.
func (s *Sender) Send(signal string, at time.Time) (sent bool, err error) {
	if err := s.open(); err != nil {
		return s.sent, err
	}
	// The trigger does not wait for a registration that fails.
	registerErr := s.complete()
	if s.sent {
		return true, registerErr
	}
	if err := s.trigger(Trigger{UID: s.vm.UID, Signal: signal, Time: at}); err != nil {
		return false, errors.Join(registerErr, err)
	}
	s.sent = true
	return true, registerErr
}

// Withdraw is the orderly end. It removes vm.json while it is still locked, so that the
// agent cannot take this for a killed launcher. The trigger stays.
func (s *Sender) Withdraw() error {
	if s.root == nil {
		return nil
	}
	err := errors.Join(s.remove(s.lock, FileVM), s.remove(s.spare, tempTrigger))
	for _, c := range []io.Closer{s.spare, s.lock, s.root} {
		// Nothing is written through these; a failed close changes nothing.
		_ = c.Close()
	}
	s.root, s.lock, s.spare = nil, nil, nil
	return err
}

// open makes s.root the directory that is at s.dir now. On an error it changes nothing:
// releasing a lock that is still seen would look like a crash.
func (s *Sender) open() error {
	now, err := os.Stat(s.dir)
	if err != nil {
		return err
	}
	if s.root != nil {
		if was, err := s.root.Stat("."); err == nil && os.SameFile(was, now) {
			return nil
		}
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	if !s.sent { // this shim has written no trigger yet
		if err := errors.Join(removeIfThere(root, FileTakenTrigger), s.clear(root)); err != nil {
			return errors.Join(err, root.Close())
		}
	}
	// The directory was replaced. Leftovers in the old one, if it can still be seen, must
	// not look like a killed launcher. An error from there is of no use.
	_ = s.Withdraw()
	s.root = root
	if was, file, _ := s.status(); file != nil && !s.sent { // an error comes back with each later call
		s.before, s.beforeFile = was, file
	}
	return nil
}

// clear removes a leftover trigger. One of this VM that the agent has not seen stays: its
// launcher was killed, and this is the same one, restarted in place.
func (s *Sender) clear(root *os.Root) error {
	content, written, err := ReadFile(root, FileTrigger)
	if err == nil && TriggerUID(content) == s.vm.UID && !s.seen(root, written) {
		return nil
	}
	return removeIfThere(root, FileTrigger)
}

// seen reports whether the agent has acted upon a trigger: status.json shows a shutdown
// since.
func (s *Sender) seen(root *os.Root, trigger fs.FileInfo) bool {
	content, told, err := ReadFile(root, FileStatus)
	if err != nil {
		return false
	}
	phase := statusFor(s.vm.UID, content).Phase
	return phase != "" && phase != grace.Running && !told.ModTime().Before(trigger.ModTime())
}

// complete does the part of the registration that is missing.
func (s *Sender) complete() error {
	if !s.registered() {
		f, err := Create(s.root, tempVM, s.content())
		if err != nil {
			return err
		}
		err = lockWhole(f)
		if err == nil {
			err = s.root.Rename(tempVM, FileVM)
		}
		if err != nil {
			return errors.Join(err, f.Close(), removeIfThere(s.root, tempVM))
		}
		_ = s.lock.Close() // it is not vm.json any more
		s.lock = f
	}
	if s.sent || s.ours(s.spare, tempTrigger) {
		return nil
	}
	f, err := Create(s.root, tempTrigger, pad(Trigger{UID: s.vm.UID}))
	if err != nil {
		return err
	}
	_ = s.spare.Close()
	s.spare = f
	return nil
}

// registered reports whether vm.json is there. A successor's vm.json in the place of ours
// stays.
func (s *Sender) registered() bool {
	if s.lock == nil {
		return false
	}
	_, err := s.root.Lstat(FileVM)
	return err == nil
}

func (s *Sender) trigger(t Trigger) error {
	if s.ours(s.spare, tempTrigger) {
		// Overwriting needs no space. If it fails all the same, the file still names the
		// VM, which is all that counts.
		_, _ = s.spare.WriteAt(pad(t), 0)
		if s.root.Rename(tempTrigger, FileTrigger) == nil {
			return nil
		}
	}
	f, err := Create(s.root, tempTrigger, nil)
	if err != nil {
		return err
	}
	// On a full disk it may stay empty: any regular file is a trigger.
	_, _ = f.Write(t.Encode())
	if err := s.root.Rename(tempTrigger, FileTrigger); err != nil {
		return errors.Join(err, f.Close(), removeIfThere(s.root, tempTrigger))
	}
	return f.Close()
}

// Create makes a new file in a launcher directory and replaces whatever has its name. The
// other end is another user, so everybody can read it, whatever the umask.
func Create(dir *os.Root, name string, content []byte) (*os.File, error) {
	if err := removeIfThere(dir, name); err != nil {
		return nil, err
	}
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Remove(name))
	}
	return f, nil
}

// ours reports whether name is the file f. An unreadable name counts as another's: the
// caller makes a new file and meets the error there.
func (s *Sender) ours(f *os.File, name string) bool {
	if f == nil {
		return false
	}
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := s.root.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

func (s *Sender) remove(f *os.File, name string) error {
	if !s.ours(f, name) {
		return nil
	}
	return s.root.Remove(name)
}

func removeIfThere(dir *os.Root, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lockWhole takes the lock whose holder the agent reads with F_GETLK. An OFD lock has no
// holder's pid, and would survive in a child.
func lockWhole(f *os.File) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

func pad(t Trigger) []byte { return padTo(t.Encode(), spareSize) }

// padTo pads a line to size, if it is not longer.
func padTo(line []byte, size int) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return append(append(line, bytes.Repeat([]byte(" "), max(0, size-1-len(line)))...), '\n')
}
