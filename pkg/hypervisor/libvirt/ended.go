package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"libvirt.org/go/libvirt"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// maxTail is how much of a log's end is read: libvirt writes QEMU's whole
// command line into it at each start, some 4 KiB and more with many devices.
const maxTail = 64 << 10

// Ended returns why an instance ended. Its log tells a kill from a shutdown; without it,
// libvirt remembers the end of a domain that is defined. libvirt 9.0 writes its last line
// 1 to 2 s after QEMU's end.
func (d *Driver) Ended(ctx context.Context, name string, i grace.Instance) (grace.End, error) {
	end, logErr := d.endByLog(name, i)
	if logErr == nil && end != grace.EndUnknown {
		return end, nil
	}
	end, err := d.endByState(ctx, name, i)
	if end != grace.EndUnknown {
		return end, nil
	}
	return grace.EndUnknown, failed("ask for the end of", name, errors.Join(logErr, err))
}

func (d *Driver) endByLog(name string, i grace.Instance) (grace.End, error) {
	if d.logDir == "" || name == "" || strings.ContainsRune(name, '/') {
		return grace.EndUnknown, nil
	}
	tail, err := readTail(filepath.Join(d.logDir, name+".log"))
	if errors.Is(err, fs.ErrNotExist) {
		return grace.EndUnknown, nil
	}
	if err != nil {
		return grace.EndUnknown, fmt.Errorf("QEMU's log: %w", err)
	}
	return logEnd(tail, i.UUID, startedAt(i)), nil
}

func readTail(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	from := max(info.Size()-maxTail, 0)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, maxTail))
	if err != nil {
		return "", err
	}
	return string(tail), nil
}

// endByState asks libvirt about a domain that is defined. It must be off and have the
// instance's UUID.
func (d *Driver) endByState(ctx context.Context, name string, i grace.Instance) (grace.End, error) {
	end := grace.EndUnknown
	err := d.queries.find(ctx, name, func(dom *libvirt.Domain) error {
		uuid, err := dom.GetUUIDString()
		if err != nil {
			return err
		}
		state, reason, err := dom.GetState()
		if err != nil {
			return err
		}
		if uuid == i.UUID && state == libvirt.DOMAIN_SHUTOFF {
			end = shutoffOf(reason)
		}
		return nil
	})
	switch {
	case errors.Is(err, hypervisor.ErrNotFound): // transient: libvirt has forgotten it
		return grace.EndUnknown, nil
	case err != nil:
		return grace.EndUnknown, err
	default:
		return end, nil
	}
}
