package shim

import (
	"io"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/vmgrace/vmgrace/test/kit"
)

// Given a directory of launcher directories, as on a node without a cluster: a shim listens
// to its own directory alone, so that it hears of its status.json and another VM's directory
// does not wake it.
func TestAnotherVMsDirectoryWakesNoShim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "default_vm1")
	kit.Must(t, os.Mkdir(dir, 0o755))
	s := newShim(Config{Dir: dir}, log.New(io.Discard, "", 0))
	defer s.status.close()
	s.lookAtStatus()
	if len(s.status.dirs) != 1 || s.status.dirs[0].Name() != dir {
		t.Errorf("it listens to %d directories, not to its own alone", len(s.status.dirs))
	}
	kit.Write(t, filepath.Join(dir, "new"), "{}")
	kit.Must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "status.json")))
	kit.Eventually(t, "a hint of its own status.json", func() bool { return len(s.status.C) > 0 })
}
