// Package rules checks deploy/monitoring: the alerts with Prometheus's own parser, and
// by its engine that each fires when it should and is silent when it should be; the
// dashboard's queries by that engine, over what the programs export; its other fields,
// and the Prometheus operator's objects, by Grafana's and the operator's own types.
package rules

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/vmgrace/vmgrace/hack/rules/memory"
)

const file = "../../deploy/monitoring/rules.yaml"

func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	found := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			found[r.Alert] = r
		}
	}
	return found
}

// Series are written as in promtool's unit tests, one sample a minute.
var cases = []struct {
	alert, name string
	series      []string
	fires       bool
}{
	{"VmgraceAgentDown", "one of two is down", []string{`up{job="vmgrace",instance="a"} 1x30`, `up{job="vmgrace",instance="b"} 0x30`}, true},
	{"VmgraceAgentDown", "none is known", nil, true},
	{"VmgraceAgentDown", "all answer", []string{`up{job="vmgrace",instance="a"} 1x30`}, false},
	{"VmgraceAgentDown", "another job is down", []string{`up{job="vmgrace"} 1x30`, `up{job="other"} 0x30`}, false},
	{"VmgraceDestroyFailed", "the first one", []string{`vmgrace_destroys_total{via="failed"} _x27 1x2`}, true},
	{"VmgraceDestroyFailed", "one more", []string{`vmgrace_destroys_total{via="failed"} 1x27 2x2`}, true},
	{"VmgraceDestroyFailed", "long ago", []string{`vmgrace_destroys_total{via="failed"} 3x30`}, false},
	{"VmgraceDestroyFailed", "destroys that worked", []string{`vmgrace_destroys_total{via="signal"} 0+1x30`}, false},
	{"VmgraceLibvirtDown", "down", []string{`vmgrace_libvirt_up 0x30`}, true},
	{"VmgraceLibvirtDown", "up", []string{`vmgrace_libvirt_up 1x30`}, false},
	{"VmgraceLibvirtDown", "a node that has no libvirt on purpose", []string{
		`up{job="vmgrace",instance="a"} 1x30`, `up{job="vmgrace",instance="b"} 1x30`, `vmgrace_libvirt_up{instance="b"} 1x30`}, false},
	{"VmgraceLibvirtDown", "down beside a node that has none", []string{
		`up{job="vmgrace",instance="a"} 1x30`, `up{job="vmgrace",instance="b"} 1x30`, `vmgrace_libvirt_up{instance="b"} 0x30`}, true},
	{"VmgraceWatchDown", "down", []string{`vmgrace_vmi_watch_up 0x30`}, true},
	{"VmgraceWatchDown", "up", []string{`vmgrace_vmi_watch_up 1x30`}, false},
	{"VmgraceDeadlineOvershoot", "one of three was late", []string{
		`vmgrace_deadline_overshoot_seconds_count 5x25 8x5`, `vmgrace_deadline_overshoot_seconds_bucket{le="0.5"} 5x25 7x5`}, true},
	{"VmgraceDeadlineOvershoot", "all in time", []string{
		`vmgrace_deadline_overshoot_seconds_count 5x25 8x5`, `vmgrace_deadline_overshoot_seconds_bucket{le="0.5"} 5x25 8x5`}, false},
	{"VmgraceDeadlineOvershoot", "late long ago", []string{
		`vmgrace_deadline_overshoot_seconds_count 8x30`, `vmgrace_deadline_overshoot_seconds_bucket{le="0.5"} 5x30`}, false},
	{"VmgraceRejected", "the first one", []string{`vmgrace_rejected_total{reason="record"} _x27 1x2`}, true},
	{"VmgraceRejected", "one more", []string{`vmgrace_rejected_total{reason="name"} 4x27 5x2`}, true},
	{"VmgraceRejected", "long ago", []string{`vmgrace_rejected_total{reason="name"} 4x30`}, false},
	{"VmgraceMigrationRefused", "the first one", []string{`vmgrace_migration_refused_total{reason="path"} _x27 1x2`}, true},
	{"VmgraceMigrationRefused", "one more", []string{`vmgrace_migration_refused_total{reason="domain"} 4x27 5x2`}, true},
	{"VmgraceMigrationRefused", "long ago", []string{`vmgrace_migration_refused_total{reason="domain"} 4x30`}, false},
	{"VmgraceMigrationRefused", "a source that was lost", []string{`vmgrace_migration_refused_total{reason="idle"} 0+1x30`}, false},
	{"VmgraceMigrationRefused", "somebody without a certificate", []string{`vmgrace_migration_refused_total{reason="tls"} 0+1x30`}, false},
	{"VmgraceNodeConflict", "libvirt-guests", []string{`vmgrace_node_conflict{with="libvirt-guests"} 1x30`, `vmgrace_node_conflict{with="auto_shutdown"} 0x30`}, true},
	{"VmgraceNodeConflict", "none", []string{`vmgrace_node_conflict{with="libvirt-guests"} 0x30`}, false},
	{"VmgraceShutdownHeld", "for minutes", []string{`vmgrace_held_shutdowns 0x26 2x4`}, true},
	{"VmgraceShutdownHeld", "moved in time", []string{`vmgrace_held_shutdowns 0x26 2 0x3`}, false},
	{"VmgraceNodeShutdownDelay", "logind's default", []string{`vmgrace_node_shutdown_needed_seconds 40x30`, `vmgrace_node_shutdown_delay_seconds 5x30`}, true},
	{"VmgraceNodeShutdownDelay", "long enough", []string{`vmgrace_node_shutdown_needed_seconds 40x30`, `vmgrace_node_shutdown_delay_seconds 40x30`}, false},
	{"VmgraceNodeShutdownDelay", "without VMs", []string{`vmgrace_node_shutdown_needed_seconds 0x30`, `vmgrace_node_shutdown_delay_seconds 5x30`}, false},
	{"VmgraceNodeShutdownDelay", "without logind", []string{`vmgrace_node_shutdown_needed_seconds 40x30`}, false},
	{"VmgraceEvictionsFail", "the first one", []string{`vmgrace_evictions_total{verdict="failed"} _x24 1x5`}, true},
	{"VmgraceEvictionsFail", "one more", []string{`vmgrace_evictions_total{verdict="failed"} 4x24 5x5`}, true},
	{"VmgraceEvictionsFail", "long ago", []string{`vmgrace_evictions_total{verdict="failed"} 4x30`}, false},
	{"VmgraceEvictionsFail", "evictions that were refused", []string{`vmgrace_evictions_total{verdict="refused"} 0+1x30`}, false},
	// The last sample is of minute 30: 1,800 s.
	{"VmgraceWebhookCertificateEnds", "in 23 h 50 min", []string{`vmgrace_webhook_certificate_not_after_timestamp_seconds 87600x30`}, true},
	{"VmgraceWebhookCertificateEnds", "it has ended", []string{`vmgrace_webhook_certificate_not_after_timestamp_seconds 60x30`}, true},
	{"VmgraceWebhookCertificateEnds", "in a week", []string{`vmgrace_webhook_certificate_not_after_timestamp_seconds 606600x30`}, false},
	{"VmgraceInvalidSettings", "one", []string{`vmgrace_invalid_settings{instance="a"} 1x30`, `vmgrace_invalid_settings{instance="b"} 0x30`}, true},
	{"VmgraceInvalidSettings", "none", []string{`vmgrace_invalid_settings 0x30`}, false},
	{"VmgraceMigrationsFail", "one a minute", []string{`vmgrace_migrations_total{cause="Eviction",result="failed"} 0+1x30`}, true},
	{"VmgraceMigrationsFail", "one", []string{`vmgrace_migrations_total{cause="Eviction",result="failed"} 0x20 1x10`}, false},
	{"VmgraceMigrationsFail", "successes", []string{`vmgrace_migrations_total{cause="Eviction",result="succeeded"} 0+9x30`}, false},
	{"VmgraceVMStuck", "one", []string{`vmgrace_vmis_stuck{instance="a"} 1x30`}, true},
	{"VmgraceVMStuck", "none", []string{`vmgrace_vmis_stuck{instance="a"} 0x30`}, false},
	{"VmgraceMigrationUndecided", "one", []string{`vmgrace_migrations_undecided{instance="a"} 1x30`}, true},
	{"VmgraceMigrationUndecided", "none", []string{`vmgrace_migrations_undecided{instance="a"} 0x30`}, false},
	{"VmgraceNodesUnreadable", "it may not", []string{`vmgrace_nodes_readable 0x30`}, true},
	{"VmgraceNodesUnreadable", "it may", []string{`vmgrace_nodes_readable 1x30`}, false},
}

func TestEachAlertFiresWhenItShould(t *testing.T) {
	rules := alerts(t)
	for _, c := range cases {
		t.Run(c.alert+"/"+c.name, func(t *testing.T) {
			rule, ok := rules[c.alert]
			if !ok {
				t.Fatalf("no alert %s in %s", c.alert, file)
			}
			if got := evaluate(t, rule.Expr, c.series); (len(got) > 0) != c.fires {
				t.Errorf("fires = %v, want %v: %v", len(got) > 0, c.fires, got)
			}
		})
	}
}

func TestEachAlertIsTestedBothWays(t *testing.T) {
	for name := range alerts(t) {
		for _, fires := range []bool{true, false} {
			tested := false
			for _, c := range cases {
				tested = tested || c.alert == name && c.fires == fires
			}
			if !tested {
				t.Errorf("no case in which %s fires = %v", name, fires)
			}
		}
	}
}

// evaluate evaluates an expression half an hour after the first sample.
func evaluate(t *testing.T, expr string, series []string) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 100000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	query, err := engine.NewInstantQuery(t.Context(), database(t, series), nil, expr, time.Unix(0, 0).Add(30*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	got, err := query.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(got)
}

// database has these series.
func database(t *testing.T, series []string) storage.Queryable {
	t.Helper()
	var all []storage.Series
	for _, text := range series {
		name, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var samples []chunks.Sample
		for minute, v := range values {
			if !v.Omitted {
				samples = append(samples, memory.Sample(int64(minute)*60000, v.Value))
			}
		}
		all = append(all, storage.NewListSeries(name, samples))
	}
	return memory.Queryable(all)
}
