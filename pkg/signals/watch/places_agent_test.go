package watch

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/kit"
)

// watchPlaces is the agent that a copy of the test binary plays. It prints what it sees
// until its stdin ends.
func watchPlaces(kubeletDir string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Use the limits of a user namespace of its own: the machine's are shared.
	limit := filepath.Join("/proc/sys/user", os.Getenv("WATCH_LIMIT"))
	if limit != "/proc/sys/user" {
		if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
			return fail(err)
		}
	}
	d, _ := EmptyDir(kubeletDir, "uid-1", "ns", "vm")
	looks := make(chan string, 100)
	p := New(slog.New(slog.NewTextHandler(os.Stderr, nil)), func(name string) { looks <- name })
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

// agent is a running copy.
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
	kit.Must(t, err)
	a.in, err = cmd.StdinPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
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
	over := time.After(scanInterval * 8 / 10)
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
