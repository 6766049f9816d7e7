package watch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vmgrace/vmgrace/test/kit"
)

// Given a launcher directory, when the agent holds and releases, however often, then the
// launcher sees its word.
func TestAHoldIsTwoFiles(t *testing.T) {
	d := Directory{Base: t.TempDir(), Name: "vmgrace"}
	if is, err := d.LookAtHold(); err != nil || is != (HoldView{}) {
		t.Errorf("no directory: %+v, %v", is, err)
	}
	if d.Hold() == nil || d.Release() == nil {
		t.Error("a missing directory was written to")
	}
	dir := filepath.Join(d.Base, d.Name)
	kit.Must(t, os.Mkdir(dir, 0o777))
	kit.Write(t, filepath.Join(dir, "shutdown"), "")
	for _, step := range []struct {
		do   func() error
		want HoldView
	}{
		{func() error { return nil }, HoldView{Present: true, Trigger: true}},
		{d.Hold, HoldView{Present: true, Trigger: true, Held: true, Answered: true}},
		{d.Hold, HoldView{Present: true, Trigger: true, Held: true, Answered: true}},
		{d.Release, HoldView{Present: true, Trigger: true, Answered: true}},
		{d.Release, HoldView{Present: true, Trigger: true, Answered: true}},
	} {
		kit.Must(t, step.do())
		if is, err := d.LookAtHold(); err != nil || is != step.want {
			t.Errorf("%+v, %v; want %+v", is, err, step.want)
		}
	}
}

// Given links and directories of a tenant's in place of the files. Then none is followed, and
// what they point at stays as it is.
func TestAHoldFollowsNoLink(t *testing.T) {
	d := Directory{Base: t.TempDir(), Name: "vmgrace"}
	dir, other := filepath.Join(d.Base, d.Name), filepath.Join(t.TempDir(), "file")
	kit.Must(t, os.Mkdir(dir, 0o777))
	for _, name := range []string{"shutdown", "held", "answered"} {
		kit.Must(t, os.Symlink(other, filepath.Join(dir, name)))
	}
	if is, err := d.LookAtHold(); err != nil || is != (HoldView{Present: true}) {
		t.Errorf("links count: %+v, %v", is, err)
	}
	kit.Must(t, d.Hold())
	if is, err := d.LookAtHold(); err != nil || !is.Held || !is.Answered {
		t.Errorf("%+v, %v", is, err)
	}
	kit.Must(t, os.Remove(filepath.Join(dir, "held")))
	kit.Must(t, os.Symlink(other, filepath.Join(dir, "held")))
	kit.Must(t, d.Release())
	if _, err := os.Lstat(other); !os.IsNotExist(err) {
		t.Errorf("a link was followed: %v", err)
	}
	if err := os.Remove(dir); err == nil {
		t.Fatal("it was not empty")
	}
	kit.Must(t, os.RemoveAll(dir))
	kit.Must(t, os.Symlink(t.TempDir(), dir))
	if d.Hold() == nil {
		t.Error("a link in place of the directory was followed")
	}
}
