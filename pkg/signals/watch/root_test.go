//go:build !unit

package watch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/pkg/signals"
	"github.com/vmgrace/vmgrace/test/kit"
)

func TestAFullDiskIsAnErrorOfTheStatusAlone(t *testing.T) {
	d, path := given(t)
	kit.Must(t, syscall.Mount("tmpfs", path, "tmpfs", 0, "size=4k,nr_inodes=3"))
	t.Cleanup(func() { _ = syscall.Unmount(path, syscall.MNT_DETACH) })
	kit.Write(t, filepath.Join(path, signals.FileTrigger), "")
	kit.Write(t, filepath.Join(path, "filler"), "x")
	if err := d.WriteStatus(grace.Status{UID: "u1", Phase: grace.Running}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("status on a full disk: %v", err)
	}
	if v := look(t, d); !v.Trigger {
		t.Error("the trigger is not seen")
	}
	kit.Must(t, d.RemoveTrigger(look(t, d).TriggerID))
}

func TestADeviceIsNeverOpenedHoweverFastItComes(t *testing.T) {
	d, path := given(t)
	device := filepath.Join(path, "device")
	kit.Must(t, unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	count := opens(t, device)
	for _, name := range []string{signals.FileVM, signals.FileTrigger} {
		kit.Write(t, filepath.Join(path, name), "{}")
		stop := swapping(t, device, filepath.Join(path, name))
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
			_, _ = d.Look() // whatever it finds
		}
		stop()
		if n := count(); n != 0 {
			t.Errorf("%s: the device was opened (%d times); that alone can arm a watchdog or rewind a tape", name, n)
		}
		if info, err := os.Lstat(device); err == nil && info.Mode().IsRegular() {
			kit.Must(t, os.Rename(filepath.Join(path, name), device))
		}
	}
}

func TestMountsAreHeardAndTheEarEnds(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan struct{}, 1)
	ended := make(chan error)
	go func() {
		ended <- watchMounts(ctx, "/proc/self/mountinfo", func() {
			select {
			case heard <- struct{}{}:
			default:
			}
		})
	}()
	for _, change := range []func() error{
		func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k") },
		func() error { return unix.Unmount(dir, 0) },
	} {
		kit.Must(t, change())
		select {
		case <-heard:
		case <-time.After(10 * time.Second):
			t.Error("not heard")
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ends without a reason")
	}
}

func TestAnAgentInItsPodSeesVolumesComeAndHoldsUpNoUnmount(t *testing.T) {
	// Its mounts follow kubelet's, as with HostToContainer.
	kubelet := t.TempDir()
	kit.Must(t, unix.Mount("tmpfs", kubelet, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { kit.Must(t, unix.Unmount(kubelet, unix.MNT_DETACH)) })
	kit.Must(t, unix.Mount("", kubelet, "", unix.MS_SHARED, ""))
	d := pod(t, kubelet, "uid-1")
	a := startAgent(t, kubelet, exec.Command("unshare", "--mount", "--propagation", "slave", os.Args[0]))
	a.says("ns_vm present=false", "err=<nil>")
	for range 3 {
		d.mount(t)
		// The look may have met the directory before the mount.
		a.says("present=true trigger=false")
		d.trigger(t)
		a.says("present=true trigger=true")
		kit.Eventually(t, "kubelet can unmount the volume", func() bool {
			err := unix.Unmount(d.path(), 0)
			if err != nil && !errors.Is(err, unix.EBUSY) { // a look takes a moment
				t.Fatal(err)
			}
			return err == nil
		})
		kit.Must(t, os.RemoveAll(filepath.Dir(d.Base)))
		a.says("present=false", "err=<nil>")
	}
}

func TestWithoutInotifyPlacesAreLookedAtAllTheTime(t *testing.T) {
	for _, c := range []struct{ limit, armed, says string }{
		{"max_inotify_instances", "armed=false", "cannot watch launcher directories"},
		{"max_inotify_watches", "armed=true", "cannot watch a launcher directory"}, // one is refused
	} {
		t.Run(c.limit, func(t *testing.T) {
			t.Parallel()
			d := pod(t, t.TempDir(), "uid-1")
			d.mount(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = []string{"WATCH_LIMIT=" + c.limit}
			self := []syscall.SysProcIDMap{{Size: 1}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: self, GidMappings: self}
			a := startAgent(t, filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(d.Base)))), cmd)
			for range 4 {
				a.says("trigger=false", c.armed)
			}
			d.trigger(t)
			a.says("trigger=true", c.armed)
			_, err := a.in.Write([]byte("there is inotify again\n"))
			kit.Must(t, err)
			// Armed; and so quiet that only an event is heard of.
			a.says("trigger=true", "armed=true")
			for quiet := false; !quiet; {
				select {
				case <-a.said:
				case <-time.After(4 * pollInterval):
					quiet = true
				}
			}
			kit.Must(t, os.Remove(filepath.Join(d.path(), "shutdown")))
			a.says("trigger=false", "armed=true")
			a.end()
			if n := strings.Count(a.log.String(), c.says); n != 1 {
				t.Errorf("said %d times:\n%s", n, a.log.String())
			}
		})
	}
}
