//go:build !unit

package handover

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/test/node"
)

// disk is a block device of both nodes. A guest counts on it, which shows who writes.
type disk struct{ device, file string }

// counting boots a guest that counts on a disk, and watches it by watchForTwo.
func (w world) counting(s node.Spec) *vm {
	w.Helper()
	d := newDisk(w)
	s.Disk = d.device
	v := w.guarded(s)
	v.disk = d
	v.watchForTwo()
	return v
}

func newDisk(w world) *disk {
	w.Helper()
	d := &disk{file: filepath.Join(w.TempDir(), "disk")}
	if err := os.WriteFile(d.file, make([]byte, 1<<20), 0o600); err != nil {
		w.Fatal(err)
	}
	out, err := exec.CommandContext(w.Context(), "losetup", "--find", "--show", d.file).CombinedOutput()
	if err != nil {
		w.Fatalf("losetup: %v: %s", err, out)
	}
	d.device = strings.TrimSpace(string(out))
	w.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", d.device).CombinedOutput(); err != nil {
			w.Errorf("losetup: %v: %s", err, out)
		}
	})
	return d
}

// at returns the number to which the guest has counted.
func (d *disk) at(w world) int {
	w.Helper()
	text, err := os.ReadFile(d.file)
	if err != nil {
		w.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return -1
	}
	return n
}

// counts waits until the guest counts on.
func (v *vm) counts() {
	v.w.Helper()
	from := v.disk.at(v.w)
	node.Eventually(v.w, 4*soon, func() bool { return v.disk.at(v.w) > from }, "%s does not count on its disk: %d", v.Name, from)
}

// alone tells whether the guest has read only what it had written itself.
func (d *disk) alone(v *vm) bool {
	return d == nil || !strings.Contains(v.Serial(), "another writes on the disk")
}
