package deploy

import (
	"io/fs"
	"os"
	"regexp"
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

// sources returns the text of all Go files below a directory of the project, without tests.
func sources(t *testing.T, dir string) string {
	t.Helper()
	text := ""
	err := fs.WalkDir(os.DirFS(root), dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			text += read(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAlertsAskForMetricsThatExist(t *testing.T) {
	source := ""
	for _, dir := range []string{"internal/node/metrics", "internal/cluster"} {
		source += sources(t, dir)
	}
	metric := regexp.MustCompile(`vmgrace_[a-z_]+`)
	for _, a := range alerts(t) {
		for _, name := range metric.FindAllString(a.Expr, -1) {
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			if !strings.Contains(source, `"`+base+`"`) {
				t.Errorf("%s asks for %s, which nobody has", a.Alert, name)
			}
		}
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

func TestTheScrapeJobIsTheOneThatAlertsAskFor(t *testing.T) {
	var file struct {
		ScrapeConfigs []struct {
			JobName string `json:"job_name"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/monitoring/scrape.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	jobs := 0
	for _, a := range alerts(t) {
		for _, m := range regexp.MustCompile(`job="([^"]*)"`).FindAllStringSubmatch(a.Expr, -1) {
			jobs++
			if m[1] != file.ScrapeConfigs[0].JobName {
				t.Errorf("%s asks for job %q, the scrape job is %q", a.Alert, m[1], file.ScrapeConfigs[0].JobName)
			}
		}
	}
	if jobs == 0 {
		t.Error("no alert on an agent that does not answer")
	}
}
