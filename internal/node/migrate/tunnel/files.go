package tunnel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
)

const (
	// filesTimeout bounds the wait for a file system.
	filesTimeout = 2 * time.Second
	// maxLooks bounds how many arriving domains are checked in parallel: a file system that
	// hangs costs this many threads.
	maxLooks = 8
)

// use is what a domain does with a path.
type use int

const (
	useRead   use = iota // firmware, a kernel: only read
	useDisk              // a disk or a level of its backing chain
	useWrite             // a log, a serial port's file, nvram: created if missing
	useSocket            // a socket that QEMU binds: an existing file of its name is removed
)

// hostPath is a path of this host in a domain.
type hostPath struct {
	name  string
	where string // the element or attribute
	below string // the allowed directory, or the path itself
	use   use
	local bool // below a directory that is only read: its links are this host's
	qcow2 bool // the domain states this format
}

// Files checks the files of a host. It is safe for concurrent use.
type Files struct {
	root  string
	looks chan struct{}
}

// NewFiles returns the files of a host. root is its root directory as this process sees it.
func NewFiles(root string) *Files { return &Files{root: root, looks: make(chan struct{}, maxLooks)} }

// look checks that each path leads to a file of the kind that the domain uses it as, and
// nowhere else: libvirt and QEMU follow symbolic links. A *Refusal means that one does not;
// another error means unknown.
func (f *Files) look(paths []hostPath) error {
	ctx, cancel := context.WithTimeout(context.Background(), filesTimeout)
	defer cancel()
	select {
	case f.looks <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("look at a domain's files: file systems of this node do not answer: %w", ctx.Err())
	}
	return durable.Within(ctx, "a file system with files of a domain", func() error { //nolint:wrapcheck // it says what was tried
		defer func() { <-f.looks }()
		root, err := unix.Open(f.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", f.root, err)
		}
		defer unix.Close(root) //nolint:errcheck // nothing was written
		for i := range paths {
			if err := paths[i].look(root); err != nil {
				return err
			}
		}
		return nil
	})
}

// look checks a path. A missing path passes: it leads nowhere.
func (p *hostPath) look(root int) error {
	fd, err := p.open(root, unix.O_PATH)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return refuse(ReasonPath, "%s for %s: a symbolic link, or below one", quoted(p.name), quoted(p.where))
	case err != nil:
		return refuse(ReasonPath, "%s for %s: cannot be looked at: %v", quoted(p.name), quoted(p.where), err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return refuse(ReasonPath, "%s for %s: cannot be looked at: %v", quoted(p.name), quoted(p.where), err)
	}
	if kind := p.kind(); s.Mode&unix.S_IFMT != kind {
		return refuse(ReasonPath, "%s for %s: a file of type %#o; one of type %#o may be used so", quoted(p.name), quoted(p.where), s.Mode&unix.S_IFMT, kind)
	}
	if p.qcow2 && !p.device() {
		return p.image(root)
	}
	return nil
}

// open opens a path without following symbolic links below the allowed directory. The
// operator chose the directory's own name. It follows udev's links below /dev, and those in
// directories that are only read: they are this host's.
func (p *hostPath) open(root int, flags uint64) (int, error) {
	within := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if p.name == p.below || p.local {
		return unix.Openat2(root, p.name[1:], &within) //nolint:wrapcheck // the caller says what was tried
	}
	below := p.below
	how := within
	how.Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS
	if p.device() {
		below, how.Resolve = "/dev", unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS
	}
	at, err := unix.Openat2(root, below[1:], &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: within.Resolve})
	if err != nil {
		return -1, err //nolint:wrapcheck // as above
	}
	defer unix.Close(at) //nolint:errcheck // nothing was written
	return unix.Openat2(at, strings.TrimPrefix(p.name[len(below):], "/"), &how)
}

func (p *hostPath) device() bool { return belowAny(p.name, []string{"/dev"}) }

// kind returns the type that the file must have.
func (p *hostPath) kind() uint32 {
	switch {
	case p.device():
		return unix.S_IFBLK
	case p.use == useSocket:
		return unix.S_IFSOCK
	default:
		return unix.S_IFREG
	}
}

// qcow2's header: the magic, and a bit of incompatible_features at offset 72.
const (
	qcow2Magic    = "QFI\xfb"
	qcow2Features = 72
	qcow2DataFile = 1 << 2
)

// image refuses a qcow2 image whose header names another file for its data, which QEMU would
// open. The domain states the backing file. An image that only QEMU's user may read is not
// checked.
func (p *hostPath) image(root int) error {
	fd, err := p.open(root, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil
	}
	if err != nil {
		return refuse(ReasonPath, "%s for %s: cannot be looked at: %v", quoted(p.name), quoted(p.where), err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	header := make([]byte, qcow2Features+8)
	n, err := unix.Pread(fd, header, 0)
	if err != nil {
		return refuse(ReasonPath, "%s for %s: cannot be read: %v", quoted(p.name), quoted(p.where), err)
	}
	if n == len(header) && bytes.HasPrefix(header, []byte(qcow2Magic)) && binary.BigEndian.Uint64(header[qcow2Features:])&qcow2DataFile != 0 {
		return refuse(ReasonPath, "%s for %s: an image whose data is in another file", quoted(p.name), quoted(p.where))
	}
	return nil
}

// systemPaths returns directories of programs, firmware and the kernel. No domain may write
// to them, whatever is allowed.
func systemPaths() []string { return []string{"/usr", "/boot", "/lib", "/etc", "/proc", "/sys"} }

// FirmwarePaths returns where distributions keep firmware, and libvirt kernels. Domains may
// read them.
func FirmwarePaths() []string {
	return []string{"/usr/share/OVMF", "/usr/share/AAVMF", "/usr/share/edk2", "/usr/share/qemu", "/usr/share/seabios", "/var/lib/libvirt/boot"}
}

// nvramPath returns where libvirt keeps a domain's nvram if its definition does not say.
func nvramPath(domain string) string { return "/var/lib/libvirt/qemu/nvram/" + domain + "_VARS.fd" }

// belowAny reports whether a clean path is one of all, or below one.
func belowAny(p string, all []string) bool { return over(p, all) != "" }

// over returns the element of all that a clean path equals or is below, or "".
func over(p string, all []string) string {
	for _, a := range all {
		if a = path.Clean(a); p == a || strings.HasPrefix(p, strings.TrimSuffix(a, "/")+"/") {
			return a
		}
	}
	return ""
}
