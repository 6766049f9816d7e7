package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/durable"
	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/gracecache"
)

// newImage creates an ext4 disk in a file.
func newImage(t *testing.T) (image string) {
	t.Helper()
	image = filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", image)
	return image
}

// mountImage mounts an ext4 image whose journal only fsync commits: the file system's own
// commits are 300 s apart.
func mountImage(t *testing.T, image string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	run(t, "mount", "-o", "loop,commit=300", image, dir)
	t.Cleanup(func() {
		// MNT_DETACH also unmounts, and frees the loop device, if a file is left open.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// powerLoss returns the disk as it is if the power is lost now: it mounts a copy of what
// has reached the image.
func powerLoss(t *testing.T, image string) (dir string) {
	t.Helper()
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	crashed := filepath.Join(t.TempDir(), "crashed")
	if err := os.WriteFile(crashed, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return mountImage(t, crashed)
}

func TestWhatAnExt4DiskHoldsAfterAPowerLoss(t *testing.T) {
	t.Parallel()
	// Given
	image := newImage(t)
	dir := filepath.Join(mountImage(t, image), "above", "state")
	store, _, err := gracecache.Take(durable.Real(), dir)
	if err == nil {
		err = store.MakeWritable()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	running := grace.Record{Namespace: "ns", Name: "vm", UID: "uid", BootID: "boot", Period: grace.Period{Length: time.Minute, Source: grace.SourceVMI}}
	ending, wall := running, time.Unix(1_770_000_000, 0).UTC()
	ending.Shutdown = grace.Shutdown{
		Cause: grace.LauncherSignal, Start: 5, Deadline: grace.Mono(5).Add(time.Minute), StartedAt: wall, DeadlineAt: wall.Add(time.Minute),
	}
	for _, step := range []struct {
		what string
		do   func() error
		want []grace.Record
	}{
		{"the first record", func() error { return store.Put(running) }, []grace.Record{running}},
		{"the shutdown", func() error { return store.Put(ending) }, []grace.Record{ending}},
		{"the removal", func() error { return store.Delete(ending.Domain()) }, nil},
	} {
		// When
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "unsynced"), []byte(step.what), 0o600); err != nil {
			t.Fatal(err)
		}
		after := filepath.Join(powerLoss(t, image), "above", "state")
		// Then
		loaded, err := gracecache.Read(after)
		if err != nil || len(loaded.Quarantined) > 0 || len(loaded.Records) != len(step.want) {
			t.Errorf("%s: %+v, %v, want %+v", step.what, loaded, err, step.want)
			continue
		}
		for i, want := range step.want {
			if loaded.Records[i] != want {
				t.Errorf("%s: %+v, want %+v", step.what, loaded.Records[i], want)
			}
		}
		// And the disk has lost what nobody has synced. Otherwise the test shows nothing.
		if data, err := os.ReadFile(filepath.Join(after, "unsynced")); err == nil && string(data) == step.what {
			t.Errorf("%s: the power was not lost", step.what)
		}
	}
}
