package node

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/internal/logs/writer"
	"github.com/vmgrace/vmgrace/internal/node/metrics"
	"github.com/vmgrace/vmgrace/test/kit"
)

// VmgraceLibvirtDown fires if vmgrace_libvirt_up is 0. An agent that has no libvirt on
// purpose must not report that.
func TestOnlyAnAgentWithLibvirtTellsWhetherItIsUp(t *testing.T) {
	for uri, want := range map[string]bool{"": false, "qemu:///system": true} {
		t.Run("--libvirt-uri="+uri, func(t *testing.T) {
			// Given: an agent of that URI.
			dir := t.TempDir()
			o, err := Parse([]string{"--standalone", "--libvirt-uri=" + uri, "--metrics-address=",
				"--launchers-dir=" + dir, "--state-dir=" + dir + "/state"}, io.Discard)
			kit.Must(t, err)
			stderr := writer.New(t.Output())
			t.Cleanup(func() { stderr.Close(time.Second) })
			n, err := o.arm(t.Context(), stderr)
			kit.Must(t, err)
			t.Cleanup(func() { kit.Must(t, n.close()) })
			// When its metrics are read.
			text := scrape(t, n.meter)
			// Then libvirt is one of them, or is not.
			if !strings.Contains(text, "\nvmgrace_vms") {
				t.Fatalf("no metrics of an agent:\n%s", text)
			}
			if got := strings.Contains(text, "vmgrace_libvirt_up"); got != want {
				t.Errorf("vmgrace_libvirt_up is there: %v, want %v", got, want)
			}
		})
	}
}

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := metrics.Listen(ctx, "127.0.0.1:0")
	kit.Must(t, err)
	ended := make(chan error, 1)
	yes := func() bool { return true }
	go func() { ended <- m.Serve(ctx, l, yes, yes) }()
	defer func() {
		cancel()
		http.DefaultClient.CloseIdleConnections()
		kit.Must(t, <-ended)
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+"/metrics", nil)
	kit.Must(t, err)
	resp, err := http.DefaultClient.Do(req)
	kit.Must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	kit.Must(t, err)
	return string(body)
}
