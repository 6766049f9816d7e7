package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// tempStatus is a fixed name: whatever a crash or a tenant left there is
// removed, so that nothing can pile up.
const tempStatus = ".status.json.agent"

// WriteStatus replaces status.json, by rename. It is an answer to a tenant, in
// the tenant's memory: nothing depends on it, so it is not made durable.
func (d Directory) WriteStatus(s signals.Status) error {
	root, _, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(tempStatus); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear %s: %w", tempStatus, err)
	}
	f, err := root.OpenFile(tempStatus, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("create %s: %w", tempStatus, err)
	}
	_, err = f.Write(s.Encode())
	// The launcher is another user, and the umask may be any.
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = root.Rename(tempStatus, signals.FileStatus)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", signals.FileStatus, err), root.Remove(tempStatus))
	}
	return nil
}
