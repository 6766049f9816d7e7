package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/vmgrace/vmgrace/pkg/signals"
)

// HoldView is what a launcher directory says of a hold. A tenant may have made or removed each
// file.
type HoldView struct {
	Present                 bool // the directory
	Trigger, Held, Answered bool
}

// LookAtHold reads which files there are. An error means that nothing is known; a missing
// directory is no error.
func (d Directory) LookAtHold() (HoldView, error) {
	root, _, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		return HoldView{}, nil
	}
	if err != nil {
		return HoldView{}, err
	}
	defer root.Close()
	view := HoldView{Present: true}
	for name, there := range map[string]*bool{
		signals.FileTrigger: &view.Trigger, signals.FileHeld: &view.Held, signals.FileAnswered: &view.Answered,
	} {
		info, err := root.Lstat(name)
		switch {
		case err == nil:
			*there = info.Mode().IsRegular()
		case !errors.Is(err, fs.ErrNotExist):
			return HoldView{}, fmt.Errorf("look at %s: %w", name, err)
		}
	}
	return view, nil
}

// Hold has the launcher wait until Release: FileHeld comes before the answer.
func (d Directory) Hold() error { return d.within(holdIn) }

// Release lets the launcher go on, or go on at once if it does not wait yet. FileHeld goes
// before the answer comes.
func (d Directory) Release() error { return d.within(releaseIn) }

func (d Directory) within(do func(*os.Root) error) error {
	root, _, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	return do(root)
}

func holdIn(root *os.Root) error {
	if err := ensure(root, signals.FileHeld); err != nil {
		return err
	}
	return ensure(root, signals.FileAnswered)
}

func releaseIn(root *os.Root) error {
	if err := root.Remove(signals.FileHeld); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", signals.FileHeld, err)
	}
	return ensure(root, signals.FileAnswered)
}

// ensure makes an empty file, or leaves a regular one that is there: the launcher may be
// looking at it.
func ensure(root *os.Root, name string) error {
	if info, err := root.Lstat(name); err == nil && info.Mode().IsRegular() {
		return nil
	}
	f, err := signals.Create(root, name, nil)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	return f.Close()
}
