package metrics

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func phases() map[grace.Phase]int {
	return map[grace.Phase]int{grace.Running: 2, grace.Held: 3, grace.ShuttingDown: 1, grace.Destroying: 0}
}

// served runs a server and returns its address.
func served(t *testing.T, m *Metrics, live, ready Check) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(ctx, l, live, ready) }()
	t.Cleanup(func() {
		cancel()
		http.DefaultClient.CloseIdleConnections()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func always(ok bool) Check { return func() bool { return ok } }

func TestTheMetricsAreTheContracts(t *testing.T) {
	m := New()
	m.Observe(phases)
	m.LibvirtUp(func() bool { return true })
	m.NodeShutdown(func() agent.NodeView {
		return agent.NodeView{NodeState: agent.NodeState{Known: true, Held: true, Delay: 5 * time.Second}, Needed: 40 * time.Second}
	})
	m.Stopped(grace.LauncherSignal, grace.Graceful, 2*time.Second)
	m.Reacted(grace.LauncherSignal, time.Millisecond)
	m.Overshot(time.Millisecond)
	m.Asked(grace.ModeACPI, "ok")
	m.Destroyed("signal")
	m.Rejected("trigger_uid")
	m.Recovered(3)
	m.Downtime(300 * time.Millisecond)
	_, body := get(t, served(t, m, always(true), always(true)), "/metrics")
	for _, line := range []string{
		`vmgrace_migration_downtime_seconds_bucket{le="0.2"} 0`, `vmgrace_migration_downtime_seconds_bucket{le="0.5"} 1`,
		`vmgrace_vms{phase="Running"} 2`,
		`vmgrace_vms{phase="ShuttingDown"} 1`,
		`vmgrace_held_shutdowns 3`,
		`vmgrace_vms{phase="Destroying"} 0`,
		`vmgrace_shutdowns_total{cause="LauncherSignal",outcome="Graceful"} 1`,
		`vmgrace_shutdown_duration_seconds_sum{outcome="Graceful"} 2`,
		`vmgrace_reaction_seconds_sum{cause="LauncherSignal"} 0.001`,
		`vmgrace_deadline_overshoot_seconds_sum 0.001`,
		`vmgrace_shutdown_requests_total{mode="acpi",result="ok"} 1`,
		`vmgrace_destroys_total{via="signal"} 1`,
		`vmgrace_rejected_total{reason="trigger_uid"} 1`,
		`vmgrace_recovered_records_total 3`,
		`vmgrace_libvirt_up 1`,
		`vmgrace_node_shutdown_delayed 1`,
		`vmgrace_node_shutdown_delay_seconds 5`,
		`vmgrace_node_shutdown_needed_seconds 40`,
		`go_goroutines `,
		`process_open_fds `,
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("no %q in /metrics", line)
		}
	}
}

func TestHealthSaysWhatIsWrong(t *testing.T) {
	address := served(t, New(), always(true), always(false))
	if code, body := get(t, address, "/livez"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/livez: %d %q", code, body)
	}
	if code, body := get(t, address, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not ready") {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, _ := get(t, address, "/"); code != http.StatusNotFound {
		t.Errorf("/: %d", code)
	}
}

func TestASilentClientHoldsUpNobody(t *testing.T) {
	address := served(t, New(), always(true), always(true))
	for range 20 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprint(c, "GET /metrics HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	if code, _ := get(t, address, "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d", code)
	}
}

func TestAnAddressThatIsTakenIsAnErrorAtTheStart(t *testing.T) {
	address := served(t, New(), always(true), always(true))
	if l, err := Listen(t.Context(), address); err == nil || !strings.Contains(err.Error(), "--metrics-address") {
		t.Errorf("%v, %v", l, err)
	}
}
