package rules

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selection "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the PrometheusRule anew from rules.yaml")

const operatorRules = "../../deploy/monitoring/operator/prometheusrule.yaml"

// rendered returns the objects of a kustomization by kind and name.
func rendered(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, r := range resources.Resources() {
		if all[r.GetKind()+"/"+r.GetName()], err = r.AsYAML(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// read decodes one of them; a field that the type does not have is an error.
func read[T any](t *testing.T, all map[string][]byte, name string) T {
	t.Helper()
	var o T
	if all[name] == nil {
		t.Fatalf("there is no %s", name)
	}
	if err := yaml.UnmarshalStrict(all[name], &o); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return o
}

// rules.yaml is the source: Prometheus itself reads no PrometheusRule, and kustomize
// makes none of a file that is no object.
func TestTheOperatorsRulesAreThoseOfTheFile(t *testing.T) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, groups, ok := strings.Cut(string(text), "\ngroups:\n")
	if !ok {
		t.Fatalf("no groups in %s", file)
	}
	var want bytes.Buffer
	want.WriteString("# Made of ../rules.yaml by hack/rules: go test -update.\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: vmgrace\nspec:\n  groups:\n")
	for line := range strings.Lines(groups) {
		if strings.TrimSpace(line) != "" {
			want.WriteString("  ")
		}
		want.WriteString(line)
	}
	if *update {
		if err := os.WriteFile(operatorRules, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := os.ReadFile(operatorRules); err != nil || !bytes.Equal(has, want.Bytes()) {
		t.Errorf("%s is not that of %s (%v): go test -update", operatorRules, file, err)
	}
	rules := alerts(t)
	object := read[monitoring.PrometheusRule](t, rendered(t, "monitoring/operator"), "PrometheusRule/vmgrace")
	for _, r := range object.Spec.Groups[0].Rules {
		if rule, ok := rules[r.Alert]; !ok || rule.Expr != r.Expr.String() {
			t.Errorf("%s: %s, in %s %s", r.Alert, r.Expr.String(), file, rule.Expr)
		}
		delete(rules, r.Alert)
	}
	if len(rules) != 0 || len(object.Spec.Groups) != 1 {
		t.Errorf("the operator does not get %v", rules)
	}
}

// A ConfigMap with this label is what the sidecar of Grafana's chart looks for.
func TestTheConfigMapIsTheDashboard(t *testing.T) {
	text, _, _ := dashboard(t)
	c := read[corev1.ConfigMap](t, rendered(t, "monitoring"), "ConfigMap/vmgrace-dashboard")
	if c.Namespace != "vmgrace-system" || c.Labels["grafana_dashboard"] != "1" {
		t.Errorf("namespace %s, labels %v", c.Namespace, c.Labels)
	}
	if len(c.Data) != 1 || c.Data["vmgrace.json"] != string(text) {
		t.Errorf("it is not %s", dashboardFile)
	}
}

// jobs are those of scrape.yaml, with the label that becomes a target's instance.
func jobs(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/monitoring/scrape.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		ScrapeConfigs []struct {
			JobName        string `json:"job_name"`
			RelabelConfigs []struct {
				SourceLabels []string `json:"source_labels"`
				TargetLabel  string   `json:"target_label"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, job := range config.ScrapeConfigs {
		for _, r := range job.RelabelConfigs {
			if r.TargetLabel == "instance" {
				all[job.JobName] = r.SourceLabels[0]
			}
		}
	}
	return all
}

func TestThePodMonitorsScrapeWhatScrapeYAMLDoes(t *testing.T) {
	want := jobs(t)
	objects := rendered(t, "monitoring/operator")
	for _, c := range []struct {
		dir, workload, monitor, job string
		port                        int32
	}{
		{"monitoring", "DaemonSet/node-agent", "PodMonitor/node-agent", "vmgrace", 9469},
		{"controller", "Deployment/cluster-controller", "PodMonitor/cluster-controller", "vmgrace-cluster-controller", 9470},
	} {
		monitor := read[monitoring.PodMonitor](t, objects, c.monitor)
		var workload struct {
			Metadata metav1.ObjectMeta
			Spec     struct{ Template corev1.PodTemplateSpec }
		}
		if err := yaml.Unmarshal(rendered(t, c.dir)[c.workload], &workload); err != nil {
			t.Fatal(err)
		}
		pod := workload.Spec.Template
		if selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector); err != nil || !selector.Matches(selection.Set(pod.Labels)) ||
			selector.Empty() || monitor.Namespace != workload.Metadata.Namespace {
			t.Errorf("%s does not select the pods of %s: %v", c.monitor, c.workload, err)
		}
		endpoint := monitor.Spec.PodMetricsEndpoints[0]
		at := slices.IndexFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == *endpoint.Port })
		if at < 0 || pod.Spec.Containers[0].Ports[at].ContainerPort != c.port {
			t.Errorf("%s has no port %s %d", c.workload, *endpoint.Port, c.port)
		}
		job, instance := "", ""
		for _, r := range endpoint.RelabelConfigs {
			switch r.TargetLabel {
			case "job":
				job = *r.Replacement
			case "instance":
				instance = string(r.SourceLabels[0])
			}
		}
		if job != c.job || instance == "" || instance != want[job] {
			t.Errorf("%s: job %s, instance of %s; scrape.yaml has %v", c.monitor, job, instance, want)
		}
		delete(want, job)
	}
	if len(want) != 0 {
		t.Errorf("no PodMonitor for %v", want)
	}
}
