package nodeagent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEventsAreKeptInFilesOfTheirOwn(t *testing.T) {
	s := shelf{filepath.Join(t.TempDir(), "state", "events")}
	if all, err := s.All(); err != nil || len(all) != 0 {
		t.Errorf("a shelf that is not there yet: %q, %v", all, err)
	}
	for name, content := range map[string]string{"vm.1": "one", "vm.2": "two"} {
		if err := s.Put(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(s.dir, "link.json")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // whatever is done twice after a crash does no harm
		if err := s.Delete("vm.1"); err != nil {
			t.Error(err)
		}
	}
	if all, err := s.All(); err != nil || len(all) != 1 || string(all[0]) != "two" {
		t.Errorf("%q, %v", all, err)
	}
	if info, err := os.Stat(filepath.Join(s.dir, "vm.2.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}
