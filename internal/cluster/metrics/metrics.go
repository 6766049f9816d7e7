// Package metrics has the metrics of cluster-controller.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Meter counts what the webhooks and controllers do. Safe for concurrent use.
type Meter struct {
	evictions  *prometheus.CounterVec
	launchers  *prometheus.CounterVec
	notAfter   prometheus.Gauge // nil without webhooks
	invalid    prometheus.Gauge
	migrations *prometheus.CounterVec
	took       prometheus.Histogram
	nodeCerts  *prometheus.CounterVec
	tainted    *prometheus.GaugeVec
	nodes      prometheus.Gauge
	leftovers  *prometheus.CounterVec
}

// New registers the metrics, which must not be registered there yet.
func New(r prometheus.Registerer) *Meter {
	f := promauto.With(r)
	return &Meter{
		leftovers: newLeftovers(f),
		evictions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "vmgrace_evictions_total",
			Help: "Evictions of VMs' pods that the webhook answered, by the VM's eviction strategy and the verdict: allowed, marked, refused, failed.",
		}, []string{"strategy", "verdict"}),
		launchers: f.NewCounterVec(prometheus.CounterOpts{
			Name: "vmgrace_launcher_pods_total",
			Help: "Launcher pods that the webhook saw being created: padded, long_enough, not_ours, failed; beside KubeVirt held, left.",
		}, []string{"result"}),
		invalid: f.NewGauge(prometheus.GaugeOpts{
			Name: "vmgrace_invalid_settings",
			Help: "Settings of the cluster that cannot be used, and objects with settings that do not count: their Events say why.",
		}),
		migrations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "vmgrace_migrations_total",
			Help: "Migrations that ended, by what asked for them (cause: Eviction, PreemptionByScheduler, DeletionByTaintManager, NodeTaint, User) and result: succeeded, failed.",
		}, []string{"cause", "result"}),
		took: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "vmgrace_migration_duration_seconds",
			Help:    "Time that successful migrations took, from when libvirt began.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000},
		}),
		nodeCerts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "vmgrace_node_certificates_total",
			Help: "Certificates that agents asked for, by result: signed, denied.",
		}, []string{"result"}),
		tainted: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "vmgrace_tainted_vmis",
			Help: "VMIs with the condition NodeTaintDetected or NodeTaintReplacing, as the elected replica sees them.",
		}, []string{"condition"}),
		nodes: f.NewGauge(prometheus.GaugeOpts{
			Name: "vmgrace_nodes_readable",
			Help: "Whether this replica may read nodes: without that right no VM is replaced because of a taint, and an uncordon takes no mark back.",
		}),
	}
}

// Eviction counts an answered eviction.
func (m *Meter) Eviction(strategy, verdict string) {
	m.evictions.WithLabelValues(strategy, verdict).Inc()
}

// Launcher counts a launcher pod that is created.
func (m *Meter) Launcher(result string) { m.launchers.WithLabelValues(result).Inc() }

// Webhooks registers the metric of the webhooks' certificate, where webhooks run. Call it once,
// before CertificateEnds.
func (m *Meter) Webhooks(r prometheus.Registerer) {
	m.notAfter = promauto.With(r).NewGauge(prometheus.GaugeOpts{
		Name: "vmgrace_webhook_certificate_not_after_timestamp_seconds",
		Help: "When the serving certificate of the webhooks ends, 0 = there is none.",
	})
}

// CertificateEnds sets when the serving certificate expires, in Unix seconds.
func (m *Meter) CertificateEnds(at float64) { m.notAfter.Set(at) }

// InvalidSettings sets how many settings are invalid or ignored.
func (m *Meter) InvalidSettings(n int) { m.invalid.Set(float64(n)) }

// Migration counts a migration that ended; took is 0 if unknown.
func (m *Meter) Migration(cause, result string, took time.Duration) {
	m.migrations.WithLabelValues(cause, result).Inc()
	if result == "succeeded" && took > 0 {
		m.took.Observe(took.Seconds())
	}
}

// NodeCertificate counts a request for an agent's certificate: signed, denied.
func (m *Meter) NodeCertificate(result string) { m.nodeCerts.WithLabelValues(result).Inc() }

// TaintedVMIs sets how many VMs have each condition.
func (m *Meter) TaintedVMIs(detected, replacing int) {
	m.tainted.WithLabelValues("NodeTaintDetected").Set(float64(detected))
	m.tainted.WithLabelValues("NodeTaintReplacing").Set(float64(replacing))
}

// NodesReadable records that nodes may be read.
func (m *Meter) NodesReadable() { m.nodes.Set(1) }

// NodesUnreadable records that nodes may not be read.
func (m *Meter) NodesUnreadable() { m.nodes.Set(0) }
