package inpod

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/hypervisor"
)

// Bounds of what is read of a VM process, which a tenant has made.
const (
	maxDescriptors = 1024
	maxProcFile    = 1 << 20
)

var errTooMuch = errors.New("it has too many descriptors or mounts")

// PodDisk returns a disk that the VM's process writes to and that goes with its pod: in an
// emptyDir or in the container's own file system. It is "" without one. QEMU locks its disks by
// open file description, and no other file. It fails with hypervisor.ErrNotFound if the process is
// not known.
func (d *Driver) PodDisk(name string) (string, error) {
	v := d.vm(name)
	if v == nil {
		return "", failed("look at", name, hypervisor.ErrNotFound)
	}
	i, runs := v.known()
	if !runs {
		return "", failed("look at", name, hypervisor.ErrNotFound)
	}
	disk, err := podDisk(i.PID)
	if _, runs = v.known(); !runs { // the pid may be another's
		disk, err = "", hypervisor.ErrNotFound
	}
	return disk, failed("look at the disks of", name, err)
}

func podDisk(pid int) (string, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	text, err := readProc(filepath.Join(dir, "mountinfo"))
	if err != nil {
		return "", err
	}
	ofPod := podMounts(text)
	fds, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return "", fmt.Errorf("descriptors: %w", err)
	}
	defer fds.Close()
	names, err := fds.Readdirnames(maxDescriptors + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("descriptors: %w", err)
	}
	if len(names) > maxDescriptors {
		return "", errTooMuch
	}
	for _, fd := range names {
		text, err := readProc(filepath.Join(dir, "fdinfo", fd))
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return "", err
		}
		if mount, is := diskOn(text); is && ofPod[mount] {
			file, err := os.Readlink(filepath.Join(dir, "fd", fd))
			if err != nil {
				return "", fmt.Errorf("a disk's name: %w", err)
			}
			return file, nil
		}
	}
	return "", nil
}

// readProc reads a file of a process. The kernel made it, at a size that a tenant may choose.
func readProc(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("open: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxProcFile+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > maxProcFile {
		return "", errTooMuch
	}
	return string(text), nil
}

// podMounts returns the mounts that go with a pod, by mountinfo (proc_pid_mountinfo(5)).
func podMounts(text string) map[string]bool {
	ofPod := map[string]bool{}
	for line := range strings.Lines(text) {
		mount, kind, _ := strings.Cut(line, " - ")
		of, kinds := strings.Fields(mount), strings.Fields(kind)
		if len(of) > 3 && len(kinds) > 0 {
			ofPod[of[0]] = kinds[0] == "overlay" || kinds[0] == "tmpfs" || strings.Contains(of[3], "/kubernetes.io~empty-dir/")
		}
	}
	return ofPod
}

// diskOn returns the mount of a descriptor, and whether it is a disk that is written to, by
// fdinfo (proc_pid_fdinfo(5)).
func diskOn(text string) (mount string, is bool) {
	var writes, locked bool
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "flags":
			flags, err := strconv.ParseUint(value, 8, 32)
			writes = err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		case "mnt_id":
			mount = value
		case "lock":
			locked = locked || strings.Contains(value, "OFDLCK")
		}
	}
	return mount, writes && locked
}
