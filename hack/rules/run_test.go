package rules

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	controller "github.com/vmgrace/vmgrace/internal/cluster/metrics"
	"github.com/vmgrace/vmgrace/internal/node/agent"
	node "github.com/vmgrace/vmgrace/internal/node/metrics"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// program is one that Prometheus scrapes.
type program struct {
	job, instance string
	address       string // of its /metrics
	work          func() // counts one of everything
}

// nodeAgent serves the metrics of a node-agent.
func nodeAgent(t *testing.T) program {
	t.Helper()
	m := node.New()
	yes := func() bool { return true }
	m.Observe(func() map[grace.Phase]int {
		return map[grace.Phase]int{grace.Running: 2, grace.Held: 1, grace.ShuttingDown: 1, grace.Destroying: 1}
	})
	m.WatchUp(yes)
	m.LibvirtUp(yes)
	m.NodeShutdown(func() agent.NodeView {
		return agent.NodeView{NodeState: agent.NodeState{Known: true, Held: true, Delay: 5 * time.Second}, Needed: 40 * time.Second}
	})
	l, err := node.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(t.Context(), l, yes, yes) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return program{job: "vmgrace", instance: "node-1", address: l.Addr().String(), work: func() {
		m.Stopped(grace.LauncherSignal, grace.Graceful, 2*time.Second)
		m.Reacted(grace.LauncherSignal, time.Millisecond)
		m.Overshot(time.Millisecond)
		m.Asked(grace.ModeACPI, "ok")
		for _, via := range []string{"signal", "libvirt", "failed"} {
			m.Destroyed(via)
		}
		m.Rejected("name")
		m.Rejected("record")
		m.Recovered(1)
		m.Downtime(300 * time.Millisecond)
		for _, reason := range []string{"tls", "idle", "path", "domain"} {
			m.TunnelRefused(reason)
		}
		m.Conflict("libvirt-guests", "libvirt-guests.service is enabled")
		m.Conflict("auto_shutdown", "")
	}}
}

// clusterController serves the metrics of a cluster-controller.
func clusterController(t *testing.T) program {
	t.Helper()
	registry := prometheus.NewRegistry()
	m := controller.New(registry)
	m.Webhooks(registry)
	now := controller.VMs{Evacuations: map[string]int{}, NotEvictable: 1, Stuck: 1}
	for _, phase := range kubevirt.MigrationPhases() {
		now.Evacuations[string(phase)] = 1
	}
	if err := controller.CountVMs(registry, func() (controller.VMs, bool) { return now, true }); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	return program{job: "vmgrace-cluster-controller", instance: "cluster-controller-0", address: address, work: func() {
		for _, verdict := range []string{string(evacuation.Allow), string(evacuation.Mark), string(evacuation.Refuse), "failed"} {
			m.Eviction(string(kubevirt.StrategyLiveMigrate), verdict)
		}
		m.Launcher("padded")
		m.Migration(evacuation.CauseEviction, "succeeded", 20*time.Second)
		m.Migration(evacuation.CauseEviction, "failed", 0)
		m.NodeCertificate("signed")
		m.NodeCertificate("denied")
		m.CertificateEnds(90 * 86400)
		m.InvalidSettings(1)
		m.TaintedVMIs(2, 1)
		m.NodesReadable()
		m.LeftoverRemoved(controller.LeftPod)
	}}
}

// scrape reads a program's metrics as Prometheus does.
func (p program) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := http.Get("http://" + p.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{fmt.Sprintf(`up{instance="%s", job="%s"}`, p.instance, p.job): 1}
	for parse := textparse.NewPromParser(text, labels.NewSymbolTable(), false); ; {
		kind, err := parse.Next()
		if errors.Is(err, io.EOF) {
			return series
		}
		if err != nil {
			t.Fatal(err)
		}
		if kind == textparse.EntrySeries {
			var l labels.Labels
			parse.Labels(&l)
			_, _, value := parse.Series()
			target := labels.NewBuilder(l).Del("__name__").Set("job", p.job).Set("instance", p.instance)
			series[l.Get("__name__")+target.Labels().String()] = value
		}
	}
}

// recorded returns what both programs export, scraped twice, a minute apart, in the
// notation of promtool. The second scrape is the last minute before evaluate looks.
func recorded(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, p := range []program{nodeAgent(t), clusterController(t)} {
		p.work()
		first := p.scrape(t)
		p.work()
		for name, value := range p.scrape(t) {
			if strings.HasPrefix(name, "vmgrace_") || strings.HasPrefix(name, "up{") {
				all = append(all, fmt.Sprintf("%s _x29 %v %v", name, first[name], value))
			}
		}
	}
	slices.Sort(all)
	return all
}
