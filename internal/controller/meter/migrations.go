package meter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func (m *Meter) addMigrations() {
	m.migrations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vmgrace_migrations_total",
		Help: "Migrations that ended, by what asked for them (cause: Eviction, PreemptionByScheduler, DeletionByTaintManager, NodeTaint, User) and result: succeeded, failed.",
	}, []string{"cause", "result"})
	m.nodeCerts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vmgrace_node_certificates_total",
		Help: "Certificates that agents asked for, by result: signed, denied.",
	}, []string{"result"})
	m.took = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "vmgrace_migration_duration_seconds",
		Help:    "Time that successful migrations took, from when libvirt began.",
		Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000},
	})
}

// Migration counts one that ended. 0 is not known.
func (m *Meter) Migration(cause, result string, took time.Duration) {
	m.migrations.WithLabelValues(cause, result).Inc()
	if result != "succeeded" {
		return
	}
	if took > 0 {
		m.took.Observe(took.Seconds())
	}
}

// NodeCertificate counts a request for an agent's certificate: signed, denied.
func (m *Meter) NodeCertificate(result string) { m.nodeCerts.WithLabelValues(result).Inc() }
