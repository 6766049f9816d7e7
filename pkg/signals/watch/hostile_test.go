package watch

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

// swapping exchanges two names as fast as it can until stop is called.
func swapping(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("exchange %s and %s: %v", a, b, err)
				return
			}
		}
	})
	return sync.OnceFunc(func() { close(end); wg.Wait() })
}

// opens counts the times a file was opened since.
func opens(t *testing.T, path string) (count func() int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	kit.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
	kit.Must(t, err)
	return func() int {
		n, err := unix.Read(fd, make([]byte, 64<<10))
		if err != nil {
			return 0 // nothing to read
		}
		return n / unix.SizeofInotifyEvent
	}
}

func TestALeaseHoldsNobodyUp(t *testing.T) {
	d, path := given(t)
	name := filepath.Join(path, signals.FileVM)
	kit.Write(t, name, "{}")
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	kit.Must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal("lease:", err)
	}
	begin := time.Now()
	_, err = d.Look()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the look took %v", took)
	}
	if err == nil {
		t.Error("a file that cannot be read counts as read")
	}
}

func TestNoContentMakesALookFail(t *testing.T) {
	deep := func(n int) string {
		return `{"version":1,"uid":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}"
	}
	for name, content := range map[string]string{
		"64 levels": deep(64), "30,000 levels": deep(30_000), "never closed": strings.Repeat(`{"a":`, 13_000),
		"a long number": `{"version":` + strings.Repeat("9", 60_000) + "}", "a long uid": `{"version":1,"uid":"` + strings.Repeat("u", 60_000) + `"}`,
		"zeros": string(make([]byte, 4096)), "not UTF-8": "\xff\xfe{\"version\":1}", "line breaks": "\n\nlevel=ERROR msg=forged\n",
	} {
		t.Run(name, func(t *testing.T) {
			d, path := given(t)
			kit.Write(t, filepath.Join(path, signals.FileVM), content)
			kit.Write(t, filepath.Join(path, signals.FileTrigger), content)
			if v := look(t, d); tookOver(v) || !v.Trigger || len(v.Rejected) != 1 {
				t.Errorf("%.200v", v)
			}
		})
	}
}
