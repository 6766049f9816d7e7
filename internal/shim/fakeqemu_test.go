package shim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vmgrace/vmgrace/test/kit"
)

// fakeQEMU is a monitor with the state of a guest. Like QEMU it serves one client at a time.
type fakeQEMU struct {
	path string

	mu        sync.Mutex
	guest     string
	migration map[string]any    // the answer to query-migrate
	refuses   map[string]string // commands, or with their arguments, with the reason
	hangs     string            // a command that gets no answer
	asked     int               // on this connection
	got       []string          // commands, with their arguments
	sockets   []*os.File        // from getfd
	midway    func()            // changes the state between the two questions of a look
}

func newFakeQEMU(t *testing.T, guest string) *fakeQEMU {
	t.Helper()
	f := &fakeQEMU{path: filepath.Join(t.TempDir(), "qmp"), guest: guest, migration: map[string]any{}, refuses: map[string]string{}}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.path, Net: "unix"})
	kit.Must(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			f.serve(conn)
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
		for _, socket := range f.sockets {
			socket.Close()
		}
	})
	return f
}

func (f *fakeQEMU) serve(conn *net.UnixConn) {
	defer conn.Close()
	f.mu.Lock()
	f.asked = 0
	f.mu.Unlock()
	fmt.Fprint(conn, greeting)
	var text []byte
	for buffer, rights := make([]byte, 4096), make([]byte, 256); ; {
		n, oob, _, _, err := conn.ReadMsgUnix(buffer, rights)
		if err != nil || n == 0 {
			return
		}
		f.take(rights[:oob])
		text = append(text, buffer[:n]...)
		for {
			line, rest, whole := bytes.Cut(text, []byte("\n"))
			if !whole {
				break
			}
			text = rest
			fmt.Fprint(conn, f.answer(line))
		}
	}
}

func (f *fakeQEMU) take(rights []byte) {
	messages, _ := unix.ParseSocketControlMessage(rights)
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			f.mu.Lock()
			f.sockets = append(f.sockets, os.NewFile(uintptr(fd), "given"))
			f.mu.Unlock()
		}
	}
}

func (f *fakeQEMU) answer(line []byte) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var c struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
		ID        int             `json:"id"`
	}
	if json.Unmarshal(line, &c) != nil {
		return ""
	}
	if c.Execute != "qmp_capabilities" {
		f.got = append(f.got, c.Execute+string(c.Arguments))
	}
	if c.Execute == f.hangs {
		return ""
	}
	answer := map[string]any{"id": c.ID, "return": f.carryOut(c.Execute, string(c.Arguments))}
	if f.asked++; f.midway != nil && f.asked == 3 { // after qmp_capabilities and the guest's state
		defer f.midway()
	}
	if reason := cmp.Or(f.refuses[c.Execute], f.refuses[c.Execute+string(c.Arguments)]); reason != "" {
		answer = map[string]any{"id": c.ID, "error": map[string]string{"class": "GenericError", "desc": reason}}
	}
	text, _ := json.Marshal(answer)
	return `{"event": "STOP"}` + "\r\n" + string(text) + "\r\n"
}

func (f *fakeQEMU) carryOut(command, arguments string) any {
	none := map[string]any{}
	switch {
	case f.refuses[command] != "":
	case command == "query-status":
		return map[string]any{"status": f.guest, "running": f.guest == "running"}
	case command == "query-migrate":
		return f.migration
	case command == "query-migrate-capabilities":
		return []any{map[string]any{"capability": "xbzrle", "state": false}}
	case command == "query-kvm":
		return map[string]bool{"enabled": true, "present": true}
	case command == "query-cpus-fast":
		return []any{map[string]any{"cpu-index": 0, "qom-path": "/machine/unattached/device[0]", "thread-id": 7}}
	case command == "qom-get" && arguments == `{"path":"/machine","property":"type"}`:
		return "pc-q35-7.2-machine"
	case command == "qom-get" && strings.Contains(arguments, "feature-words"):
		return []any{map[string]any{"cpuid-input-eax": 1, "cpuid-register": "EDX", "features": 7}, map[string]any{"cpuid-input-eax": 7, "cpuid-input-ecx": 0, "cpuid-register": "EBX", "features": 0}}
	case command == "qom-get":
		return "Skylake-Client-v3-x86_64-cpu"
	case command == "stop":
		f.guest = "paused"
	case command == "cont":
		f.guest = "running"
	case command == "migrate", command == "migrate-incoming":
		f.migration = map[string]any{"status": "active"}
	case command == "migrate_cancel" && f.migration["status"] == "active":
		f.migration = map[string]any{"status": "cancelled"}
	}
	return none
}

// becomes changes what QEMU says.
func (f *fakeQEMU) becomes(guest string, migration map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.guest, f.migration = guest, migration
}

// did returns the commands that are no questions.
func (f *fakeQEMU) did() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.got), func(command string) bool {
		return strings.HasPrefix(command, "query-") || strings.HasPrefix(command, "qom-get")
	})
}

// refuse makes QEMU refuse a command.
func (f *fakeQEMU) refuse(command, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuses[command] = reason
}

// hang makes QEMU begin a command, and say so to nobody.
func (f *fakeQEMU) hang(command string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangs = command
}
