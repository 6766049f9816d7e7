package libvirt

import (
	"context"
	"errors"
	"fmt"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// dropsCaches is the first QEMU, in libvirt's numbers, that drops caches of files at a
// migration's end (lv9: QEMU_CAPS_MIGRATION_FILE_DROP_CACHE).
const dropsCaches = 4_000_000

var errAutostart = errors.New("the domain starts by itself with this node's libvirt, and would be there twice: virsh autostart --disable")

// Define returns what a migration would send. It fails with hypervisor.ErrNotFound if no
// such domain runs.
func (m *Migrator) Define(ctx context.Context, name string) (hypervisor.Definition, error) {
	var is hypervisor.Definition
	err := m.texts.do(ctx, name, func(c *connection) error {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return plain(err)
		}
		defer dom.Free() //nolint:errcheck // gives memory back, no more
		active, err := dom.IsActive()
		if err != nil {
			return plain(err)
		}
		if !active {
			return fmt.Errorf("%w: it does not run", hypervisor.ErrNotFound)
		}
		if is.XML, _, err = sentXML(dom); err != nil {
			return err
		}
		if is.Autostart, err = dom.GetAutostart(); err != nil {
			return plain(err)
		}
		if is.Snapshots, err = dom.SnapshotNum(0); err != nil {
			return plain(err)
		}
		version, err := c.GetVersion()
		is.DropsCaches = version >= dropsCaches
		return plain(err)
	})
	if err != nil {
		return hypervisor.Definition{}, failed("read the definition of", name, err) // is may still be written to
	}
	return is, nil
}
