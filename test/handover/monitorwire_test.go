//go:build !unit

package handover

import (
	"bufio"
	"bytes"
	"net"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/node"
)

// monitorWire forwards what a launcher's shim and its QEMU's monitor say to each other, with the
// descriptors that are passed.
type monitorWire struct {
	moments *moments
	to      string

	mu        sync.Mutex
	migrates  bool // the guest is sent
	receiving bool // a guest is received, and does not go on yet
}

func newMonitorWire(t node.T, m *moments, at, to string) {
	t.Helper()
	w := &monitorWire{moments: m, to: to}
	serveUnix(t, at, w.serve)
}

func (w *monitorWire) serve(c net.Conn) {
	defer c.Close()
	s, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.to, Net: "unix"})
	shim, ok := c.(*net.UnixConn)
	if err != nil || !ok {
		return
	}
	var copying sync.WaitGroup
	for _, carry := range []func(c, s *net.UnixConn){w.commands, w.answers} {
		copying.Go(func() {
			carry(shim, s)
			_ = c.Close()
			_ = s.Close()
		})
	}
	copying.Wait()
}

// commands carries what the shim says. It says a command by one write.
func (w *monitorWire) commands(c, s *net.UnixConn) {
	data, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*8))
	for {
		n, passed, _, _, err := c.ReadMsgUnix(data, rights)
		if err != nil || n == 0 {
			return
		}
		if do := w.moments.take(w.command(data[:n])); do != nil && !do() {
			return
		}
		_, _, err = s.WriteMsgUnix(data[:n], rights[:passed], nil)
		closeRights(rights[:passed])
		if err != nil {
			return
		}
	}
}

// command returns the moment of a migration at which the shim says this.
func (w *monitorWire) command(text []byte) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text = bytes.ReplaceAll(text, []byte(" "), nil)
	is := func(name string) bool { return bytes.Contains(text, []byte(`"execute":"`+name+`"`)) }
	switch {
	case is("migrate"):
		w.migrates = true
	case is("migrate-incoming"):
		w.receiving = true
		return prepare
	case is("cont") && w.receiving:
		w.receiving = false
		return performed
	}
	return ""
}

// answers carries what QEMU says, line by line.
func (w *monitorWire) answers(c, s *net.UnixConn) {
	lines := bufio.NewReader(s)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		if do := w.moments.take(w.answer(line)); do != nil && !do() {
			return
		}
		if _, err := c.Write([]byte(line)); err != nil {
			return
		}
	}
}

func (w *monitorWire) answer(line string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.migrates && strings.Contains(line, `"status": "completed"`):
		return finish
	case w.receiving && strings.Contains(line, `"status": "paused"`):
		return finished
	}
	return ""
}

// closeRights closes this process's copies of descriptors that were passed on.
func closeRights(rights []byte) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
		}
	}
}
