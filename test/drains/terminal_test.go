//go:build !unit

package drains

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
)

// terminal is a pseudo-terminal. Its lines wrap anew when its width changes.
type terminal struct {
	*testing.T

	keys *os.File
	cmd  *exec.Cmd
	over chan struct{} // closed when the process writes no more

	mu    sync.Mutex
	wide  int
	high  int
	lines []string // the cursor is in the last one
	raw   strings.Builder
}

// onTerminal runs kubectl-vmdrain on a terminal, so that Ctrl-C there reaches it.
func onTerminal(t *testing.T, term string, args ...string) *terminal {
	t.Helper()
	return startOnTerminal(t, term, shared.Binary, append([]string{"--kubeconfig=" + shared.Kubeconfig}, args...)...)
}

func startOnTerminal(t *testing.T, term, binary string, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	kit.Must(t, err)
	kit.Must(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetUint32(int(keys.Fd()), unix.TIOCGPTN)
	kit.Must(t, err)
	screen, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	kit.Must(t, err)
	defer screen.Close()
	s := &terminal{T: t, keys: keys, over: make(chan struct{}), lines: []string{""}}
	s.resize(80, 24)
	s.cmd = exec.Command(binary, args...)
	s.cmd.Env = append(os.Environ(), "TERM="+term, "GORACE=atexit_sleep_ms=0 exitcode=66")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = screen, screen, screen
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	kit.Must(t, s.cmd.Start())
	go s.show()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.over
		_ = keys.Close()
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", s)
		}
	})
	return s
}

func (s *terminal) resize(wide, high int) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wide, s.high = wide, high
	kit.Must(s.T, unix.IoctlSetWinsize(int(s.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(wide), Row: uint16(high)}))
}

// show reads what the process writes, until the process has ended.
func (s *terminal) show() {
	defer close(s.over)
	var text string
	for buf := make([]byte, 4096); ; {
		n, err := s.keys.Read(buf)
		text += string(buf[:n])
		s.mu.Lock()
		s.raw.Write(buf[:n])
		for text != "" {
			done := s.write(text)
			if done == 0 {
				break // the escape sequence is not complete
			}
			text = text[done:]
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// write processes one character or escape sequence and returns its length.
func (s *terminal) write(text string) int {
	if text[0] != '\x1b' {
		last := &s.lines[len(s.lines)-1]
		switch text[0] {
		case '\n':
			s.lines = append(s.lines, "")
		case '\r':
		default:
			*last += text[:1]
		}
		return 1
	}
	end := strings.IndexAny(text, "AJ")
	if end < 0 {
		return 0
	}
	if text[end] == 'A' {
		var up int
		_, _ = fmt.Sscanf(text, "\x1b[%dA", &up)
		s.up(up)
	}
	return end + 1 // J clears below the cursor: up has already done that
}

// up moves the cursor up by rows of the screen and clears from there.
func (s *terminal) up(rows int) {
	if rows >= s.high {
		s.Errorf("%d rows up, of %d", rows, s.high)
	}
	for rows > 0 && len(s.lines) > 1 {
		s.lines = s.lines[:len(s.lines)-1]
		rows -= 1 + max(len(s.lines[len(s.lines)-1])-1, 0)/s.wide
	}
	if rows != 0 {
		s.Errorf("not at the begin of a line, but %d rows from it", rows)
	}
	s.lines[len(s.lines)-1] = ""
}

func (s *terminal) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func (s *terminal) ctrlC() {
	s.Helper()
	_, err := s.keys.WriteString("\x03")
	kit.Must(s.T, err)
}

// ends waits for the process's end and asserts its exit status: 128+n after signal n.
func (s *terminal) ends(within time.Duration, want int) {
	s.Helper()
	select {
	case <-s.over:
	case <-time.After(within):
		s.Fatalf("it does not end within %v", within)
	}
	err := s.cmd.Wait()
	status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		s.Fatalf("its exit status: %v", err)
	}
	got := status.ExitStatus()
	if status.Signaled() {
		got = 128 + int(status.Signal())
	}
	var exit *exec.ExitError
	if got != want || err != nil && !errors.As(err, &exit) {
		s.Errorf("exit status %d, want %d: %v", got, want, err)
	}
}

func (s *terminal) shows(what string) {
	s.Helper()
	eventually(s.T, "the terminal shows "+what, func() bool { return strings.Contains(s.String(), what) })
}

func TestOnATerminalATableIsDrawnOverItself(t *testing.T) {
	on := newNode(t)
	var all []moving
	for i := range 8 {
		v, p := markedVM(t, on, fmt.Sprint("vm-", i), kubevirt.StrategyLiveMigrate)
		all = append(all, moving{p, migration(t, v, on)})
	}
	s := onTerminal(t, "xterm", on)
	for i := range all[:2] { // as many as the cluster's limit allows
		all[i].runs(t, 40+i*10)
	}
	s.shows("[#####.....]")
	s.shows("[####......]")
	eventually(t, "six VMs wait for their turn", func() bool { return strings.Count(s.String(), "migration Pending") == 6 })
	s.fits(80, 24)

	// When the terminal becomes narrower, then the table does.
	s.resize(50, 24)
	all[0].runs(t, 91)
	s.shows("[#########.]")
	s.fits(50, 24)
	s.resize(100, 30)
	for _, m := range all {
		end(t, m.pod)
	}
	s.ends(soon, 0)
	s.fits(100, 30)
	s.shows("8 of 8 pods drained")
	s.shows("node/" + on + " drained")

	// When the terminal knows no escape sequences, then it gets plain lines.
	s = onTerminal(t, "dumb", on)
	s.ends(soon, 0)
	if s.shows("node/" + on + " drained"); strings.ContainsRune(s.raw.String(), '\x1b') {
		t.Errorf("%q", s.raw.String())
	}
}

// fits asserts that the terminal shows one table, which is not wider and has no more lines
// than the terminal.
func (s *terminal) fits(wide, high int) {
	s.Helper()
	_, table, ok := strings.Cut(s.String(), " cordoned\n")
	lines := strings.Split(table, "\n")
	if !ok || strings.Count(table, "pods drained") != 1 || len(lines) > high {
		s.Errorf("%d lines on %d:\n%s", len(lines), high, s)
	}
	for _, l := range lines {
		if len(l) > wide {
			s.Errorf("a line of %d columns on %d: %s", len(l), wide, l)
		}
	}
}

// Given a drain with --uncordon-on-cancel, and an API server that does not answer. When the
// user presses Ctrl-C, then vmdrain waits for the uncordon. When the user presses it again,
// then vmdrain ends at once. Otherwise the user could not end it while the API server is
// away.
func TestASecondCtrlCEndsItAtOnce(t *testing.T) {
	on := newNode(t)
	p := newPod(t, on, "p", nil)
	s := onTerminal(t, "xterm", on, "--uncordon-on-cancel")
	terminating(t, p)
	s.shows("Terminating")
	kit.Must(t, shared.Freeze())
	defer func() { kit.Must(t, shared.Thaw()) }()
	s.ctrlC()
	s.shows("interrupted; pods left: 1")
	select {
	case <-s.over:
		t.Fatal("it did not wait for the node to be given back")
	default:
	}
	s.ctrlC()
	s.ends(10*time.Second, 130)
}
