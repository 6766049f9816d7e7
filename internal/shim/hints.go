package shim

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The changes of a directory's entries (linux/fcntl.h, DN_*); multishot: more
// than the first one.
const (
	dnModify = 1 << (iota + 1)
	dnCreate
	dnDelete
	dnRename
	dnMultishot = 1 << 31
)

// maxLinks is the kernel's own limit (path_resolution(7)).
const maxLinks = 40

// hints tell that a path may lead to something else than before.
//
// They come by dnotify (fcntl(2), F_NOTIFY), whose marks belong to a process.
// inotify has 128 instances for all processes of a user: some hundred launcher
// pods of one user would take them from each other, and those of root from
// kubelet, systemd and the node agent.
type hints struct {
	// C has an entry once something has changed.
	C    chan os.Signal
	dirs []*os.File // the kernel tells of their entries as long as they are open
	way  func(path string) (dirs []string, written bool)
}

func newHints() *hints {
	h := &hints{C: make(chan os.Signal, 1), way: way}
	signal.Notify(h.C, unix.SIGIO)
	return h
}

// poke makes a hint.
func (h *hints) poke() {
	select {
	case h.C <- unix.SIGIO:
	default: // one is waiting
	}
}

// close ends the hints.
func (h *hints) close() {
	signal.Stop(h.C)
	h.disarm()
}

// disarm ends them until the next arm.
func (h *hints) disarm() {
	for _, dir := range h.dirs {
		_ = dir.Close() // nothing was written through it
	}
	h.dirs = nil
}

// arm asks for hints about path: what comes there or changes there makes one, also
// while they are asked for. An error means that a change may go unnoticed.
func (h *hints) arm(path string) error {
	h.disarm()
	dirs, written := h.way(path)
	for i, dir := range dirs {
		changes := dnCreate | dnDelete | dnRename
		if written && i == len(dirs)-1 {
			changes |= dnModify
		}
		if err := h.listen(dir, changes|dnMultishot); err != nil {
			return err
		}
	}
	if now, _ := h.way(path); !slices.Equal(now, dirs) {
		h.poke()
	}
	return nil
}

func (h *hints) listen(dir string, changes int) error {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	h.dirs = append(h.dirs, f)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_NOTIFY, changes); err != nil {
		return fmt.Errorf("fcntl F_NOTIFY %s: %w", dir, err)
	}
	return nil
}

// way is where a change can lead path elsewhere: the last directory that there
// is, the one above it, and those with links on the way. Not every one above:
// in one such as /tmp much happens that is of no interest. written tells
// whether the last directory is the file's own.
func way(path string) (dirs []string, written bool) {
	path, _ = filepath.Abs(path) // without a current directory there is no way
	at, names, links := "/", split(path), 0
	for len(names) > 0 {
		next := filepath.Join(at, names[0]) // at has no links, so ".." is its parent
		info, err := os.Lstat(next)
		if err != nil || !info.IsDir() && info.Mode().Type() != os.ModeSymlink {
			break
		}
		names = names[1:]
		if info.IsDir() {
			at = next
			continue
		}
		dirs = append(dirs, at)
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			break // replaced since, or a circle
		}
		if names = append(split(target), names...); filepath.IsAbs(target) {
			at = "/"
		}
	}
	slices.Sort(dirs)
	return slices.Compact(append(dirs, filepath.Dir(at), at)), len(names) == 1
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
