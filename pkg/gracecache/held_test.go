package gracecache

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// replaced counts the files of dir that are gone and still held by us.
func replaced(t *testing.T, dir string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && strings.HasPrefix(target, filepath.Clean(dir)+"/") && strings.HasSuffix(target, " (deleted)") {
			n++
		}
	}
	return n
}

func TestAReplacedRecordIsHeldForAMomentAndNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := openStore(t, dir)
		put(t, s, named("vm"), named("vm"), named("vm"))
		if n := replaced(t, dir); n != 2 {
			t.Errorf("%d files are held while somebody waits for their successors, not 2", n)
		}
		<-time.After(holdTime)
		synctest.Wait()
		if n := replaced(t, dir); n != 0 {
			t.Errorf("%d files that nobody can read are kept", n)
		}
		for range 2 * maxHeld {
			put(t, s, named("vm"))
		}
		if n := replaced(t, dir); n != maxHeld {
			t.Errorf("%d files are held, not at most %d", n, maxHeld)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := replaced(t, dir); n != 0 {
			t.Errorf("%d files are kept by a closed store", n)
		}
	})
}
