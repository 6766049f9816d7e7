package watch

import (
	"errors"
	"fmt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
)

// tempStatus is a fixed name. Leftovers of a crash or a tenant are removed, so that
// nothing can pile up.
const tempStatus = ".status.json.agent"

// WriteStatus replaces status.json, by rename. Nothing depends on this answer to a
// tenant, in the tenant's memory, so it is not made durable.
func (d Directory) WriteStatus(s grace.Status) error {
	root, _, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := signals.Create(root, tempStatus, signals.EncodeStatus(s))
	if err != nil {
		return fmt.Errorf("write %s: %w", signals.FileStatus, err)
	}
	err = f.Close()
	if err == nil {
		err = root.Rename(tempStatus, signals.FileStatus)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", signals.FileStatus, err), root.Remove(tempStatus))
	}
	return nil
}
