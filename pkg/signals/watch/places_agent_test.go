package watch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watchPlaces is what the copy of the test binary does in the agent's stead:
// it says what it sees until its stdin ends.
func watchPlaces(kubeletDir string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The limits of a user namespace of its own; those of the machine are everybody's.
	limit := filepath.Join("/proc/sys/user", os.Getenv("WATCH_LIMIT"))
	if limit != "/proc/sys/user" {
		if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
			return fail(err)
		}
	}
	d, err := EmptyDir(kubeletDir, "uid-1", "ns", "vm")
	if err != nil {
		return fail(err)
	}
	looks := make(chan string, 100)
	p := NewPlaces(slog.New(slog.NewTextHandler(os.Stderr, nil)), func(name string) { looks <- name })
	p.Set("ns_vm", d)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			if err := os.WriteFile(limit, []byte("1000"), 0); err != nil {
				os.Exit(fail(err))
			}
		}
	}()
	go func() {
		for name := range looks {
			view, err := d.Look()
			fmt.Printf("%s present=%t trigger=%t armed=%t err=%v\n", name, view.Present, view.Trigger, p.Armed(), err)
		}
	}()
	if err := p.Run(ctx); err != nil {
		return fail(err)
	}
	return 0
}

// agent is that copy.
type agent struct {
	t    *testing.T
	in   io.WriteCloser
	said chan string
	log  bytes.Buffer // to be read once it has ended
	end  func()
}

func startAgent(t *testing.T, kubeletDir string, cmd *exec.Cmd) *agent {
	t.Helper()
	a := &agent{t: t, said: make(chan string, 10_000)}
	cmd.Env = append(append(os.Environ(), "WATCH_KUBELET_DIR="+kubeletDir), cmd.Env...)
	cmd.Stderr = &a.log
	out, err := cmd.StdoutPipe()
	must(t, err)
	a.in, err = cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			a.said <- lines.Text()
		}
	}()
	ended := false
	a.end = func() {
		if ended {
			return
		}
		ended = true
		_ = a.in.Close()
		hung := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer hung.Stop()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the agent: %v\n%s", err, a.log.String())
		}
	}
	t.Cleanup(a.end)
	return a
}

// says waits until the agent says all of this in one line.
func (a *agent) says(words ...string) {
	a.t.Helper()
	over := time.After(slow * 8 / 10)
	for {
		select {
		case line := <-a.said:
			missing := false
			for _, word := range words {
				missing = missing || !strings.Contains(line, word)
			}
			if !missing {
				return
			}
		case <-over:
			a.t.Fatalf("the agent does not say %v", words)
		}
	}
}

func TestAnAgentInItsPodSeesVolumesComeAndHoldsUpNoUnmount(t *testing.T) {
	// Its mounts follow kubelet's, as with HostToContainer.
	kubelet := t.TempDir()
	must(t, unix.Mount("tmpfs", kubelet, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(kubelet, unix.MNT_DETACH)) })
	must(t, unix.Mount("", kubelet, "", unix.MS_SHARED, ""))
	d := pod(t, kubelet, "uid-1")
	a := startAgent(t, kubelet, exec.Command("unshare", "--mount", "--propagation", "slave", os.Args[0]))
	a.says("ns_vm present=false", "err=<nil>")
	for range 3 {
		d.mount(t)
		// The look may have met the directory before the mount.
		a.says("present=true trigger=false")
		d.trigger(t)
		a.says("present=true trigger=true")
		eventually(t, "kubelet can unmount the volume", func() bool {
			err := unix.Unmount(d.path(), 0)
			if err != nil && !errors.Is(err, unix.EBUSY) { // a look takes a moment
				t.Fatal(err)
			}
			return err == nil
		})
		must(t, os.RemoveAll(filepath.Dir(d.Base)))
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
			must(t, err)
			// Armed; and so quiet that only an event is heard of.
			a.says("trigger=true", "armed=true")
			for quiet := false; !quiet; {
				select {
				case <-a.said:
				case <-time.After(4 * fast):
					quiet = true
				}
			}
			must(t, os.Remove(filepath.Join(d.path(), "shutdown")))
			a.says("trigger=false", "armed=true")
			a.end()
			if n := strings.Count(a.log.String(), c.says); n != 1 {
				t.Errorf("said %d times:\n%s", n, a.log.String())
			}
		})
	}
}
