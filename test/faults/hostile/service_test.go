package hostile

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// listening returns the listening TCP sockets and the bound UDP sockets of a process, as
// "address:port" in the hexadecimal of proc(5)'s net/tcp.
func listening(t *testing.T, a *node.Agent) (sockets []string) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", a.PID())
	mine := map[string]bool{}
	fds, err := filepath.Glob(proc + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil {
			mine[strings.Trim(strings.TrimPrefix(target, "socket:"), "[]")] = true
		}
	}
	for table, state := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		f, err := os.Open(filepath.Join(proc, "net", table))
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) > 9 && fields[3] == state && mine[fields[9]] {
				sockets = append(sockets, table+" "+fields[1])
			}
		}
		f.Close()
	}
	return sockets
}

func TestTheAgentListensOnTheAskedAddressOnly(t *testing.T) {
	n := node.New(t)
	a := n.Agent(t).Start(t)
	var port int
	if _, err := fmt.Sscanf(a.Address, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	if got, want := listening(t, a), fmt.Sprintf("tcp 0100007F:%04X", port); len(got) != 1 || got[0] != want {
		t.Errorf("listens on %v, want %s only", got, want)
	}
	off := n.Agent(t, "--metrics-address=").Launch(t)
	answered(t, neighbour(t, off), soon)
	if got := listening(t, off); len(got) != 0 {
		t.Errorf("listens on %v although it was told not to", got)
	}
}

func TestNothingSecretAndNothingOfATenantIsServed(t *testing.T) {
	const mark = "s3cret-of-a-tenant"
	t.Setenv("VMGRACE_TEST_SECRET", mark) // it is in the agent's environment too
	a := node.New(t).Agent(t).Start(t)
	l := a.LauncherFor(t, "vmgrace-test", mark, mark)
	for _, content := range []string{mark, `{"version":1,"namespace":"` + mark + `"}`, `{"version":1,"namespace":"vmgrace-test","name":"` + mark +
		`","uid":"` + mark + `","gracePeriodSeconds":"` + mark + `"}`} {
		l.Write(t, "vm.json", content)
		l.Write(t, "shutdown", `{"version":1,"uid":"`+mark+`-2","signal":"`+mark+`"}`)
		neighbour(t, a) // when the agent has answered it, it has seen these files too
	}
	for _, path := range []string{"/metrics", "/livez", "/readyz", "/", "/" + mark, "/debug/pprof/", "/debug/pprof/cmdline", "/debug/vars", "/metrics/../../etc/passwd"} {
		code, body, err := a.Get(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		served := path == "/metrics" || path == "/livez" || path == "/readyz"
		if served != (code == http.StatusOK) && path != "/metrics/../../etc/passwd" {
			t.Errorf("%s: %d", path, code)
		}
		for _, secret := range []string{mark, hex.EncodeToString([]byte(mark)), "root:", a.StateDir} {
			if strings.Contains(body, secret) {
				t.Errorf("%s says %q", path, secret)
			}
		}
	}
}
