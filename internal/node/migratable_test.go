package node

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFilesOfANodeAreLookedAtBelowItsRoot(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A link as it reads on the node: it must not lead to this process's /disk.
	if err := os.Symlink("/disk", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	f := files{root: root}
	for path, want := range map[string]bool{"/disk": true, "/link": true, "/missing": false, "/../disk": true} {
		if shared, err := f.shared(path); shared || (err == nil) != want {
			t.Errorf("%s: shared %v, %v", path, shared, err)
		}
	}
	// One that hangs is asked once.
	f.busy.Store(true)
	if _, err := f.shared("/disk"); err == nil {
		t.Error("it was asked again")
	}
}
