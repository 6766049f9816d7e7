//go:build !unit

package libvirt

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

func TestWhatCannotBeReadIsUnknownNotGone(t *testing.T) {
	dir := t.TempDir()
	whole := statusXML("ns_vm", uuidA, 4711)
	kit.Write(t, filepath.Join(dir, "half.xml"), whole[:len(whole)/2])
	kit.Write(t, filepath.Join(dir, "empty.xml"), "")
	kit.Write(t, filepath.Join(dir, "other.xml"), whole)
	kit.Write(t, filepath.Join(dir, "nopid.xml"), strings.Replace(statusXML("nopid", uuidA, 1), "pid='1'", "pid='x'", 1))
	kit.Write(t, filepath.Join(dir, "stranger.xml"), statusXML("stranger", uuidA, 4711))
	kit.Write(t, filepath.Join(dir, "target"), statusXML("link", uuidA, 4711))
	if err := errors.Join(
		os.Truncate(filepath.Join(dir, "empty.xml"), 0),
		os.Chown(filepath.Join(dir, "stranger.xml"), 65534, 0),
		os.Symlink("target", filepath.Join(dir, "link.xml")),
		unix.Mkfifo(filepath.Join(dir, "fifo.xml"), 0o600),
		os.Mkdir(filepath.Join(dir, "directory.xml"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	kit.Write(t, filepath.Join(dir, "huge.xml"), "")
	if err := os.Truncate(filepath.Join(dir, "huge.xml"), maxStatus+1); err != nil {
		t.Fatal(err)
	}
	r := newRunDir(dir)
	for _, name := range []string{"half", "empty", "other", "nopid", "stranger", "link", "fifo", "directory", "huge"} {
		if e, err := r.look(name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	for _, name := range []string{"", "missing", "../" + filepath.Base(dir) + "/half"} {
		if _, err := r.look(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
