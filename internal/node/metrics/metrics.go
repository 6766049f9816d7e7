// Package metrics is what operators see of the agent: Prometheus metrics and the health
// endpoints. Every label value is a constant of this program.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/vmgrace/vmgrace/internal/node/agent"
	"github.com/vmgrace/vmgrace/pkg/grace"
)

// Metrics holds the metrics. Any goroutine may call its methods.
type Metrics struct {
	registry  *prometheus.Registry
	stopped   *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	reaction  *prometheus.HistogramVec
	overshoot prometheus.Histogram
	asked     *prometheus.CounterVec
	destroyed *prometheus.CounterVec
	rejected  *prometheus.CounterVec
	recovered prometheus.Counter
	conflict  *prometheus.GaugeVec
	refused   *prometheus.CounterVec
	downtime  prometheus.Histogram
	holds     *prometheus.CounterVec
}

// New returns metrics with the Go and process collectors registered.
func New() *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		stopped:  counters("vmgrace_shutdowns_total", "Shutdowns that ended.", "cause", "outcome"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vmgrace_shutdown_duration_seconds", Help: "From the cause to the end of QEMU.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600},
		}, []string{"outcome"}),
		reaction: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vmgrace_reaction_seconds", Help: "From the arrival of the file or event to the first request.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"cause"}),
		overshoot: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "vmgrace_deadline_overshoot_seconds", Help: "From the deadline to the signal.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 10},
		}),
		asked:     counters("vmgrace_shutdown_requests_total", "Requests to guests.", "mode", "result"),
		destroyed: counters("vmgrace_destroys_total", "Signals to QEMU and destroys by libvirt; failed: QEMU survived both.", "via"),
		rejected:  counters("vmgrace_rejected_total", "Things that could not be used or done, by reason.", "reason"),
		refused:   counters("vmgrace_migration_refused_total", "Connections of other nodes' agents that were ended for what they sent.", "reason"),
		downtime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "vmgrace_migration_downtime_seconds", Help: "For how long guests stood still that moved from this node.",
			Buckets: []float64{.05, .1, .2, .5, 1, 2, 5, 10, 30, 60},
		}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vmgrace_recovered_records_total", Help: "Records found on disk when the agent started.",
		}),
		holds: counters("vmgrace_holds_ended_total", "Launchers beside KubeVirt that were held while their VM was to be moved, by how that ended.", "outcome"),
		conflict: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vmgrace_node_conflict", Help: "1 where libvirt itself ends VMs when the node shuts down; absent while that is not known.",
		}, []string{"with"}),
	}
	m.registry.MustRegister(m.stopped, m.duration, m.reaction, m.overshoot, m.asked, m.destroyed, m.rejected, m.recovered, m.conflict, m.refused, m.downtime, m.holds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// TunnelRefused counts a refused connection of another node's agent.
func (m *Metrics) TunnelRefused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Downtime records how long a guest that has left stood still.
func (m *Metrics) Downtime(d time.Duration) { m.downtime.Observe(d.Seconds()) }

// HoldEnded counts a launcher beside KubeVirt that is no longer held.
func (m *Metrics) HoldEnded(outcome string) { m.holds.WithLabelValues(outcome).Inc() }

// HandlerRuns registers the function that reports whether virt-handler runs on this node. The
// metric is absent while that is not known.
func (m *Metrics) HandlerRuns(state func() (runs, known bool)) {
	desc := prometheus.NewDesc("vmgrace_virt_handler_running", "1 while virt-handler runs on this node; 0: a shutdown of the node asks no guest.", nil, nil)
	m.registry.MustRegister(scraped(func(add sample) {
		runs, known := state()
		switch {
		case runs && known:
			add(desc, 1)
		case known:
			add(desc, 0)
		}
	}))
}

// Observe registers the function that counts VMs by phase. It is called at each scrape
// and must not block.
func (m *Metrics) Observe(phases func() map[grace.Phase]int) {
	vms := prometheus.NewDesc("vmgrace_vms", "Recorded VMs by phase.", []string{"phase"}, nil)
	held := prometheus.NewDesc("vmgrace_held_shutdowns", "Shutdowns that wait for their VM to be moved instead.", nil, nil)
	m.registry.MustRegister(scraped(func(add sample) {
		now := phases()
		for phase, n := range now {
			add(vms, float64(n), string(phase))
		}
		add(held, float64(now[grace.Held]))
	}))
}

// WatchUp registers the function that reports whether the API server's VMIs are watched.
func (m *Metrics) WatchUp(up func() bool) {
	m.isUp("vmgrace_vmi_watch_up", "1 while VMIs and launcher pods are watched.", up)
}

// LibvirtUp registers the function that reports whether there is a connection to libvirt.
// An agent without libvirt has no such metric.
func (m *Metrics) LibvirtUp(up func() bool) {
	m.isUp("vmgrace_libvirt_up", "1 while there is a connection to libvirt.", up)
}

// NodeShutdown registers the function that tells for how long a shutdown of the node is
// delayed. The delay is absent while it is unknown.
func (m *Metrics) NodeShutdown(state func() agent.NodeView) {
	m.isUp("vmgrace_node_shutdown_delayed", "1 while a shutdown of the node would wait for its VMs.", func() bool { return state().Held })
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	delay := desc("vmgrace_node_shutdown_delay_seconds", "How long logind delays a shutdown of the node at most.")
	needed := desc("vmgrace_node_shutdown_needed_seconds", "The longest grace period on the node, and the destroy timeout; 0 without VMs.")
	m.registry.MustRegister(scraped(func(add sample) {
		now := state()
		add(needed, now.Needed.Seconds())
		if now.Known {
			add(delay, now.Delay.Seconds())
		}
	}))
}

func (m *Metrics) isUp(name, help string, up func() bool) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		if up() {
			return 1
		}
		return 0
	}))
}

// Stopped counts a shutdown that ended.
func (m *Metrics) Stopped(cause grace.Cause, outcome grace.Outcome, took time.Duration) {
	m.stopped.WithLabelValues(string(cause), string(outcome)).Inc()
	m.duration.WithLabelValues(string(outcome)).Observe(took.Seconds())
}

// Reacted records the time from a cause to the first request.
func (m *Metrics) Reacted(cause grace.Cause, after time.Duration) {
	m.reaction.WithLabelValues(string(cause)).Observe(after.Seconds())
}

// Overshot records the time from the deadline to the signal.
func (m *Metrics) Overshot(by time.Duration) { m.overshoot.Observe(by.Seconds()) }

// Asked counts a request; result is "ok" or "failed".
func (m *Metrics) Asked(mode grace.Mode, result string) {
	m.asked.WithLabelValues(string(mode), result).Inc()
}

// Destroyed counts a signal, a destroy by libvirt, or the failure of both.
func (m *Metrics) Destroyed(via string) { m.destroyed.WithLabelValues(via).Inc() }

// Rejected counts an unusable input or a failed step.
func (m *Metrics) Rejected(reason string) { m.rejected.WithLabelValues(reason).Inc() }

// Recovered counts the records found at start.
func (m *Metrics) Recovered(n int) { m.recovered.Add(float64(n)) }

// Conflict records a found setting or unit that ends VMs when the node shuts down, "" for
// none.
func (m *Metrics) Conflict(with, found string) {
	value := 0.0
	if found != "" {
		value = 1
	}
	m.conflict.WithLabelValues(with).Set(value)
}

// scraped computes its values at each scrape, so that none can be outdated.
type scraped func(add sample)

// sample adds a gauge's value to what is scraped.
type sample func(what *prometheus.Desc, value float64, labels ...string)

// Describe implements prometheus.Collector; an empty one leaves the descriptions to
// Collect.
func (scraped) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s scraped) Collect(ch chan<- prometheus.Metric) {
	s(func(what *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(what, prometheus.GaugeValue, value, labels...)
	})
}
