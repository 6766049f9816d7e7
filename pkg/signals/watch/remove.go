package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// RemoveTrigger removes the trigger that was seen, and no other. A trigger that replaced
// it stays, or comes back. A missing one is no error.
func (d Directory) RemoveTrigger(seen grace.TriggerID) error {
	return d.removeTrigger(seen, func() {})
}

// removeTrigger calls between where a tenant could change something. A file can only be
// removed by its name. So it is first renamed to a name that only the agent uses, then
// checked, and put back if it is another one. An agent may die in between: Look reads
// that name, too.
func (d Directory) removeTrigger(seen grace.TriggerID, between func()) error {
	root, _, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	if err := putBack(root); err != nil {
		return err
	}
	between()
	err = rename(root, signals.FileTrigger, signals.FileTakenTrigger)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", signals.FileTrigger, err)
	}
	between()
	taken, err := root.Lstat(signals.FileTakenTrigger)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errors.Join(fmt.Errorf("look at the taken %s: %w", signals.FileTrigger, err), putBack(root))
	case triggerID(taken) != seen:
		return putBack(root)
	}
	if err := root.Remove(signals.FileTakenTrigger); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", signals.FileTrigger, err)
	}
	return nil
}

// putBack undoes the removal of a wrong trigger, or one that a dead agent left undone. If
// there is a later trigger, that one is enough.
func putBack(root *os.Root) error {
	err := rename(root, signals.FileTakenTrigger, signals.FileTrigger)
	if errors.Is(err, fs.ErrExist) {
		err = root.Remove(signals.FileTakenTrigger)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put %s back: %w", signals.FileTrigger, err)
	}
	return nil
}

// rename follows no link and replaces nothing.
func rename(root *os.Root, from, to string) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	fd := int(dir.Fd())
	return unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
}
