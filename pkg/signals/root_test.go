//go:build !unit

package signals

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

func TestAFullDiskDoesNotStopATrigger(t *testing.T) {
	dir := kit.Tmpfs(t, "size=32k")
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	fill(t, dir)
	send(t, s)
	wantTrigger(t, dir) // whole, not just an empty file
}

func TestAFileSystemWithoutInodesDoesNotStopATrigger(t *testing.T) {
	dir := kit.Tmpfs(t, "size=64k,nr_inodes=5")
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	var err error
	for i := 0; err == nil; i++ {
		err = os.Mkdir(filepath.Join(dir, strings.Repeat("d", i+1)), 0o700)
	}
	send(t, s)
	wantTrigger(t, dir)
}

func TestADiskThatWasFullFromTheStartGetsATriggerWithoutContent(t *testing.T) {
	dir := kit.Tmpfs(t, "size=32k")
	filler := fill(t, dir)
	s := newSender(t, dir)
	if err := s.Register(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("Register: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, FileVM)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a vm.json: %v", err)
	}
	if sent, err := s.Send("SIGTERM", noon); !sent || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Send: %v, %v", sent, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, FileTrigger)); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the trigger: %v", err)
	}
	// When there is room again, the registration is completed.
	kit.Must(t, os.Remove(filler))
	send(t, s)
	if got := names(t, dir); got != "shutdown vm.json" {
		t.Errorf("there is %s", got)
	}
}

func TestAReadOnlyDirectoryIsTriedAgain(t *testing.T) {
	dir := kit.Tmpfs(t, "size=64k")
	remount(t, dir, unix.MS_RDONLY)
	s := newSender(t, dir)
	if err := s.Register(); !errors.Is(err, unix.EROFS) {
		t.Fatalf("Register: %v", err)
	}
	if sent, err := s.Send("SIGTERM", noon); sent || !errors.Is(err, unix.EROFS) {
		t.Fatalf("Send: %v, %v", sent, err)
	}
	remount(t, dir, 0)
	send(t, s)
	wantTrigger(t, dir)
}

func TestAReplacedSpareIsNotMovedIntoPlace(t *testing.T) {
	dir := kit.Tmpfs(t, "size=32k")
	s := newSender(t, dir)
	kit.Must(t, s.Register())
	kit.Must(t, os.Remove(filepath.Join(dir, FileVM)))
	fill(t, dir) // so that it cannot register again
	kit.Must(t, os.Remove(filepath.Join(dir, tempTrigger)))
	kit.Must(t, os.Symlink("elsewhere", filepath.Join(dir, tempTrigger)))
	if sent, err := s.Send("SIGTERM", noon); !sent || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Send: %v, %v", sent, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, FileTrigger)); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the trigger is %v, %v", info, err)
	}
}
