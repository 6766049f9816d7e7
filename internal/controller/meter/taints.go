package meter

import "github.com/prometheus/client_golang/prometheus"

func (m *Meter) addTaints() {
	m.tainted = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "vmgrace_tainted_vmis",
		Help: "VMIs with the condition NodeTaintDetected or NodeTaintReplacing, as the elected replica sees them.",
	}, []string{"condition"})
	m.nodes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vmgrace_nodes_readable",
		Help: "Whether this replica may read nodes: without that right no VM is replaced because of a taint, and an uncordon takes no mark back.",
	})
}

// TaintedVMIs says how many VMs have each condition.
func (m *Meter) TaintedVMIs(detected, replacing int) {
	m.tainted.WithLabelValues("NodeTaintDetected").Set(float64(detected))
	m.tainted.WithLabelValues("NodeTaintReplacing").Set(float64(replacing))
}

// NodesReadable says that nodes may be read.
func (m *Meter) NodesReadable() { m.nodes.Set(1) }

// NodesUnreadable says that they may not.
func (m *Meter) NodesUnreadable() { m.nodes.Set(0) }
