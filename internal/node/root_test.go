//go:build !unit

package node

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
)

func TestAStateDirectoryThatGoesIsTakenAgain(t *testing.T) {
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
			t.Parallel()
			dir := given(t, clock{}.Now())
			t.Cleanup(func() {
				for unix.Unmount(dir, unix.MNT_DETACH) == nil {
				}
			})
			// Given: it is kept.
			c, guarded := onDisk(t, durable.Real().FS, dir)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			if err := c.open(ctx); err != nil {
				t.Fatal(err)
			}
			go func() { ended <- c.keep(ctx) }()
			for range 3 { // from the second time on it is another directory
				// When it goes.
				if err := lose(dir); err != nil {
					t.Fatal(err)
				}
				// Then it is taken again. A call may also come from the midst of the
				// removal.
				for taken := false; !taken; {
					<-guarded.saves
					_, err := os.Stat(dir + "/.lock")
					taken = err == nil
				}
				_ = os.RemoveAll(dir + ".old")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(dir+"/"+e.Name()))
	}
	return err
}
