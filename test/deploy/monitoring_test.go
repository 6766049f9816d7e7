package deploy

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// alerts reads the alert rules. hack/rules checks them with Prometheus's own library.
func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, "deploy/monitoring/rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 5 {
		t.Fatalf("%d groups", len(file.Groups))
	}
	return file.Groups[0].Rules
}

func TestEachAlertSaysWhatIsWrongAndWhereToRead(t *testing.T) {
	for _, a := range alerts(t) {
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", a.Alert, s)
		}
		if a.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", a.Alert)
		}
		want := "https://github.com/vmgrace/vmgrace/blob/main/docs/runbook.md#" + strings.ToLower(a.Alert)
		if got := a.Annotations["runbook_url"]; got != want {
			t.Errorf("%s: runbook_url %q, want %q", a.Alert, got, want)
		}
	}
}

func TestEachAlertHasItsPartOfTheRunbookAndEachPartItsAlert(t *testing.T) {
	var want []string
	for _, a := range alerts(t) {
		want = append(want, a.Alert)
	}
	parts := strings.Split(read(t, "docs/runbook.md"), "\n## ")[1:]
	var got []string
	for _, part := range parts {
		name, text, _ := strings.Cut(part, "\n")
		got = append(got, name)
		for _, word := range []string{"**Means**", "**Check**", "**Do**"} {
			if !strings.Contains(text, word) {
				t.Errorf("the runbook's %s does not have %s", name, word)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("runbook %v, alerts %v", got, want)
	}
}

// The dashboard's ConfigMap is one that kubectl can apply, and the port of the agent,
// which is on its node's network, one that can be declared.
func TestTheAPIServerTakesTheMonitoring(t *testing.T) {
	api.Kubectl(t, "apply", "-k", root+"deploy/daemonset")
	said := api.Kubectl(t, "apply", "--dry-run=server", "-k", root+"deploy/monitoring")
	for _, object := range []string{"configmap/vmgrace-dashboard created", "daemonset.apps/node-agent configured"} {
		if !strings.Contains(said, object) {
			t.Errorf("no %q: %s", object, said)
		}
	}
}
