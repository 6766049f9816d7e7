//go:build !unit

package nodeagent

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

func TestAStateDirectoryThatGoesIsTakenAgainAndTheRecordsCalledFor(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"removed": func(dir string) error {
			if os.RemoveAll(dir) == nil {
				return nil
			}
			return os.RemoveAll(dir) // it was taken again meanwhile
		},
		"renamed":      func(dir string) error { return os.Rename(dir, dir+".old") },
		"emptied":      empty,
		"mounted over": func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := given(t, clock{}.Now())
			t.Cleanup(func() {
				for unix.Unmount(dir, unix.MNT_DETACH) == nil {
				}
			})
			store, err := gracecache.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			}()
			// Given: it is kept.
			ctx, cancel := context.WithCancel(t.Context())
			called := make(chan struct{}, 10)
			var counted atomic.Int32
			ended := make(chan error)
			go func() {
				ended <- keepCache(ctx, dir, store, func() { called <- struct{}{} }, func() { counted.Add(1) }, slog.New(slog.DiscardHandler))
			}()
			for range 3 { // from the second time on it is another directory
				// When it goes.
				if err := lose(dir); err != nil {
					t.Fatal(err)
				}
				// Then it is taken again, before anybody looks unasked. A call may
				// also come from the midst of the removal.
				late := time.After(cacheLook * 7 / 10)
				for taken := false; !taken; {
					select {
					case <-called:
					case <-late:
						t.Fatal("the directory is not taken, or nobody has called for the records")
					}
					_, err := os.Stat(dir + "/.lock")
					taken = err == nil
				}
				_ = os.RemoveAll(dir + ".old")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := counted.Load(); n < 3 {
				t.Errorf("counted %d of 3 losses", n)
			}
		})
	}
}
