package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"regexp"
	"strings"
	"time"
)

const (
	// nodeRoot is the node's file system, also from inside the agent's container,
	// which has the node's PIDs.
	nodeRoot = "/proc/1/root"
	// conflictInterval is how often the node is checked: packages may be installed later.
	conflictInterval = 10 * time.Minute
	maxQEMUConf      = 1 << 20
)

// conflict is a part of libvirt that saves, shuts down or destroys VMs when the node
// shuts down, without regard to their grace periods.
type conflict struct {
	with   string // the metric's label
	look   func(root *os.Root) (found string, err error)
	advice string
}

func conflicts() []conflict {
	return []conflict{
		{"libvirt-guests", lookForLibvirtGuests, "systemctl disable --now libvirt-guests.service"},
		{"auto_shutdown", lookForAutoShutdown, `set these to "none" in /etc/libvirt/qemu.conf and restart libvirt`},
	}
}

// watchConflicts checks the node at intervals, until ctx ends, and logs each finding
// once. The file system may hang: nobody waits for this.
func watchConflicts(ctx context.Context, dir string, conflicted func(with, found string), log *slog.Logger) {
	logged := map[string]string{}
	tick := time.NewTicker(conflictInterval)
	defer tick.Stop()
	for {
		for _, c := range conflicts() {
			found, err := c.lookIn(dir)
			switch {
			case err != nil && logged[c.with] != err.Error():
				logged[c.with] = err.Error()
				log.Info("cannot tell whether libvirt itself ends VMs when the node shuts down", "by", c.with, "err", err)
			case err == nil && found != "" && logged[c.with] != found:
				log.Warn("libvirt itself ends VMs when the node shuts down, whatever is left of their grace periods", "by", c.with, "found", found, "do", c.advice)
				fallthrough
			case err == nil:
				logged[c.with] = found
				conflicted(c.with, found)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c conflict) lookIn(dir string) (found string, err error) {
	root, err := os.OpenRoot(dir) // links of the node's are the node's, not the container's
	if err != nil {
		return "", fmt.Errorf("the node's file system: %w", err)
	}
	found, err = c.look(root)
	if err != nil {
		err = fmt.Errorf("the node's %w", err)
	}
	return found, errors.Join(err, root.Close())
}

const guestsUnit = "libvirt-guests.service"

// lookForLibvirtGuests reports whether systemd has the unit started or enabled. systemd
// keeps a link in /run/systemd/units for each active unit, and /run/systemd/system exists
// if it runs at all (sd_booted(3)).
func lookForLibvirtGuests(root *os.Root) (string, error) {
	if _, err := root.Lstat("run/systemd/system"); err != nil {
		return "", absent(err)
	}
	const active = "run/systemd/units/invocation:" + guestsUnit
	if _, err := root.Lstat(active); err == nil {
		return guestsUnit + " is started", nil
	} else if absent(err) != nil {
		return "", err
	}
	masked, err := root.Readlink(path.Join("etc/systemd/system", guestsUnit))
	if err == nil && masked == os.DevNull {
		return "", nil
	}
	for _, dir := range []string{"etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"} {
		links, err := fs.Glob(root.FS(), path.Join(dir, "*.*s", guestsUnit)) // .wants, .requires
		if err != nil {
			return "", err
		}
		if len(links) > 0 {
			return guestsUnit + " is enabled", nil
		}
	}
	return "", nil
}

// autoShutdown matches settings of libvirt ≥ 11.2. If they are missing, the system's
// daemon uses "none" (src/qemu/qemu.conf.in).
var autoShutdown = regexp.MustCompile(`(?m)^[ \t]*(auto_shutdown_(?:try_save|try_shutdown|poweroff))[ \t]*=[ \t]*["']([a-z]+)["']`)

// lookForAutoShutdown returns the settings that are not "none".
func lookForAutoShutdown(root *os.Root) (string, error) {
	f, err := root.Open("etc/libvirt/qemu.conf")
	if err != nil {
		return "", absent(err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxQEMUConf))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	var found []string
	for _, m := range autoShutdown.FindAllSubmatch(text, -1) {
		if !bytes.Equal(m[2], []byte("none")) {
			found = append(found, fmt.Sprintf("%s = %s", m[1], m[2]))
		}
	}
	return strings.Join(found, ", "), nil
}

// absent returns nil for a missing file, which is an answer.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
