package metrics

import "github.com/prometheus/client_golang/prometheus"

// VMs holds the counts of one scrape.
type VMs struct {
	Evacuations  map[string]int // migrations that empty nodes, by phase
	NotEvictable int            // VMs that block a drain
	Stuck        int            // VMs of which maxAttempts migrations have failed
	Undecided    int            // migrations that somebody has to decide
}

// vms is the collector of VMs. If look returns false it exports no values, not 0.
type vms struct {
	look         func() (VMs, bool)
	evacuations  *prometheus.Desc
	notEvictable *prometheus.Desc
	stuck        *prometheus.Desc
	undecided    *prometheus.Desc
}

// CountVMs registers a collector that calls look at each scrape.
func CountVMs(r prometheus.Registerer, look func() (VMs, bool)) error {
	return r.Register(&vms{
		look: look,
		evacuations: prometheus.NewDesc("vmgrace_evacuations",
			"Migrations that empty nodes, by phase. Finished ones are kept for a while.", []string{"phase"}, nil),
		notEvictable: prometheus.NewDesc("vmgrace_vmis_not_evictable",
			"VMs that run with evictionStrategy LiveMigrate and are not live-migratable: they hold up a drain.", nil, nil),
		stuck: prometheus.NewDesc("vmgrace_vmis_stuck",
			"VMs that are to leave their nodes and of which maxAttempts migrations in a row have failed: somebody has to act.", nil, nil),
		undecided: prometheus.NewDesc("vmgrace_migrations_undecided",
			"Migrations that wait for the agent of a node that is lost or silent: somebody has to act.", nil, nil),
	})
}

// Describe implements prometheus.Collector.
func (v *vms) Describe(d chan<- *prometheus.Desc) {
	d <- v.evacuations
	d <- v.notEvictable
	d <- v.stuck
	d <- v.undecided
}

// Collect implements prometheus.Collector.
func (v *vms) Collect(c chan<- prometheus.Metric) {
	now, ok := v.look()
	if !ok {
		return
	}
	for phase, n := range now.Evacuations {
		c <- prometheus.MustNewConstMetric(v.evacuations, prometheus.GaugeValue, float64(n), phase)
	}
	c <- prometheus.MustNewConstMetric(v.notEvictable, prometheus.GaugeValue, float64(now.NotEvictable))
	c <- prometheus.MustNewConstMetric(v.stuck, prometheus.GaugeValue, float64(now.Stuck))
	c <- prometheus.MustNewConstMetric(v.undecided, prometheus.GaugeValue, float64(now.Undecided))
}
