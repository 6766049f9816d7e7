package shim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/kit"
)

// watches waits until the shim watches the process.
func (s *shimProcess) watches(pid string) {
	s.t.Helper()
	s.eventually("process "+pid+" is watched", func() bool { return strings.Contains(s.stderr.String(), "watching process "+pid) })
}

func TestThePIDFileIsNoticedHoweverItComes(t *testing.T) {
	for name, c := range map[string]struct {
		given func(t *testing.T, dir string)
		file  string // below dir
		when  func(t *testing.T, dir, pid string)
	}{
		"written": {nil, "pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			kit.Must(t, os.WriteFile(filepath.Join(dir, "pid"), []byte(pid+"\n"), 0o600))
		}},
		"written over what is no pid": {func(t *testing.T, dir string) {
			t.Helper()
			kit.Must(t, os.WriteFile(filepath.Join(dir, "pid"), []byte("soon\n"), 0o600))
		}, "pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			kit.Must(t, os.WriteFile(filepath.Join(dir, "pid"), []byte(pid+"\n"), 0o600))
		}},
		"renamed into place": {nil, "pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			renamed(t, filepath.Join(dir, "pid"), pid)
		}},
		"written bit by bit": {nil, "pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			f, err := os.Create(filepath.Join(dir, "pid"))
			kit.Must(t, err)
			for _, c := range pid + "\n" {
				_, err := f.WriteString(string(c))
				kit.Must(t, err)
			}
			kit.Must(t, f.Close())
		}},
		"in directories that come": {nil, "a/b/c/pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			kit.Must(t, os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700))
			renamed(t, filepath.Join(dir, "a/b/c/pid"), pid)
		}},
		"in a directory that is replaced": {makes("a/b"), "a/b/pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			kit.Must(t, os.Rename(filepath.Join(dir, "a/b"), filepath.Join(dir, "old")))
			kit.Must(t, os.Mkdir(filepath.Join(dir, "a/b"), 0o700))
			renamed(t, filepath.Join(dir, "a/b/pid"), pid)
		}},
		"behind a link, as in /var/run": {links("run/vm", "var-run", "run"), "var-run/vm/pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			renamed(t, filepath.Join(dir, "run/vm/pid"), pid)
		}},
		"behind a link to nowhere": {links("run", "var-run", "run/later"), "var-run/pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			kit.Must(t, os.Mkdir(filepath.Join(dir, "run/later"), 0o700))
			renamed(t, filepath.Join(dir, "run/later/pid"), pid)
		}},
		"behind a link that is turned": {links("old/one", "links/current", "../old/one"), "links/current/pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			makes("new/one")(t, dir)
			renamed(t, filepath.Join(dir, "new/one/pid"), pid)
			kit.Must(t, os.Symlink("../new/one", filepath.Join(dir, "turned")))
			kit.Must(t, os.Rename(filepath.Join(dir, "turned"), filepath.Join(dir, "links/current")))
		}},
		"behind a circle that is broken": {links(".", "a", "a"), "a/pid", func(t *testing.T, dir, pid string) {
			t.Helper()
			kit.Must(t, os.Remove(filepath.Join(dir, "a")))
			kit.Must(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
			renamed(t, filepath.Join(dir, "a/pid"), pid)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pid, end := vm(t)
			dir := t.TempDir()
			if c.given != nil {
				c.given(t, dir)
			}
			s := started(t, t.TempDir(), "--pid-file", filepath.Join(dir, c.file))
			c.when(t, dir, pid)
			s.watches(pid)
			end()
			s.wantExit(0)
		})
	}
}

func makes(below string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		kit.Must(t, os.MkdirAll(filepath.Join(dir, below), 0o700))
	}
}

func links(below, name, target string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		makes(below)(t, dir)
		makes(filepath.Dir(name))(t, dir)
		kit.Must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
}

func renamed(t *testing.T, path, pid string) {
	t.Helper()
	kit.Must(t, os.WriteFile(path+".new", []byte(pid), 0o600))
	kit.Must(t, os.Rename(path+".new", path))
}
