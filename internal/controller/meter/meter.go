// Package meter has the metrics of the cluster side.
package meter

import "github.com/prometheus/client_golang/prometheus"

// Meter counts what the webhooks and controllers do. Safe for concurrent use.
type Meter struct {
	evictions *prometheus.CounterVec
	launchers *prometheus.CounterVec
	notAfter  prometheus.Gauge
	invalid   prometheus.Gauge

	migrations *prometheus.CounterVec
	nodeCerts  *prometheus.CounterVec
	took       prometheus.Histogram

	tainted *prometheus.GaugeVec
	nodes   prometheus.Gauge
}

// New registers the metrics.
func New(r prometheus.Registerer) (*Meter, error) {
	m := &Meter{
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vmgrace_evictions_total",
			Help: "Evictions of VMs' pods that the webhook answered, by the VM's eviction strategy and the verdict: allowed, marked, refused, failed.",
		}, []string{"strategy", "verdict"}),
		launchers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vmgrace_launcher_pods_total",
			Help: "Launcher pods that the webhook saw being created: padded, long_enough, not_ours, failed.",
		}, []string{"result"}),
		notAfter: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "vmgrace_webhook_certificate_not_after_timestamp_seconds",
			Help: "When the serving certificate of the webhooks ends, 0 = there is none.",
		}),
		invalid: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "vmgrace_invalid_settings",
			Help: "Settings of the cluster that cannot be used, and objects with settings that do not count: their Events say why.",
		}),
	}
	m.addMigrations()
	m.addTaints()
	for _, c := range []prometheus.Collector{m.evictions, m.launchers, m.notAfter, m.invalid, m.migrations, m.nodeCerts, m.took, m.tainted, m.nodes} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Eviction counts an answered eviction.
func (m *Meter) Eviction(strategy, verdict string) {
	m.evictions.WithLabelValues(strategy, verdict).Inc()
}

// Launcher counts a launcher pod that is created.
func (m *Meter) Launcher(result string) { m.launchers.WithLabelValues(result).Inc() }

// CertificateEnds says when the serving certificate ends, in Unix seconds.
func (m *Meter) CertificateEnds(at float64) { m.notAfter.Set(at) }

// InvalidSettings says how many settings cannot be used.
func (m *Meter) InvalidSettings(n int) { m.invalid.Set(float64(n)) }
