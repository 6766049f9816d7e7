package helm

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what the chart has of deploy's manifests")

// modes are values, with what kubectl apply -k is given for each.
var modes = []struct {
	name, values string
	dirs         []string
}{
	{"complete", "", []string{"crds", "."}},
	{"beside", "withoutKubeVirt: false", []string{"beside-kubevirt"}},
	{"agents", "controller: {enabled: false}", []string{"crds", "daemonset"}},
	{"agents beside", "{withoutKubeVirt: false, controller: {enabled: false}}", []string{"beside-kubevirt/agents"}},
	{"monitoring", "monitoring: true", []string{"crds", "monitoring", "controller"}},
}

// made are the manifests without values: the chart's are copies.
var made = map[string]string{
	"daemonset/rbac.yaml":                        "templates/daemonset/rbac.yaml",
	"daemonset/policy.yaml":                      "templates/daemonset/policy.yaml",
	"daemonset/quota.yaml":                       "templates/daemonset/quota.yaml",
	"controller/rbac.yaml":                       "templates/controller/rbac.yaml",
	"controller/migration-rbac.yaml":             "templates/controller/migration-rbac.yaml",
	"controller/service.yaml":                    "templates/controller/service.yaml",
	"controller/webhooks.yaml":                   "templates/controller/webhooks.yaml",
	"controller/evacuationpolicies.yaml":         "crds/evacuationpolicies.yaml",
	"crds/virtualmachineinstances.yaml":          "charts/crds/crds/virtualmachineinstances.yaml",
	"crds/virtualmachineinstancemigrations.yaml": "charts/crds/crds/virtualmachineinstancemigrations.yaml",
	"crds/kubevirts.yaml":                        "charts/crds/crds/kubevirts.yaml",
}

// TestTheChartHasTheManifests compares the files that -update writes.
func TestTheChartHasTheManifests(t *testing.T) {
	byMode := map[string]objects{}
	for _, mode := range modes {
		byMode[mode.name] = manifests(t, "", mode.dirs...)
	}
	for from, to := range made {
		source, err := os.ReadFile(filepath.Join(deploy, from))
		if err != nil {
			t.Fatal(err)
		}
		want, guard := "# Made by (cd hack/helm && go test -update) out of deploy/"+from+".\n", ""
		for document := range strings.SplitSeq(string(source), "\n---\n") {
			for _, b := range blocks(t, document, byMode, strings.HasPrefix(to, "templates/")) {
				want += conditions(guard, b.guard) + "---\n" + b.text
				guard = b.guard
			}
		}
		chartHas(t, to, from, want+conditions(guard, ""))
	}
}

// TestTheChartHasTheDashboard as it is: JSON has no comments, and Helm does not read it.
func TestTheChartHasTheDashboard(t *testing.T) {
	const from = "monitoring/dashboard.json"
	source, err := os.ReadFile(filepath.Join(deploy, from))
	if err != nil {
		t.Fatal(err)
	}
	chartHas(t, "dashboard.json", from, string(source))
}

// chartHas compares a file of the chart, which -update writes first.
func chartHas(t *testing.T, to, from, want string) {
	t.Helper()
	to = filepath.Join(dir, to)
	if *update {
		if err := os.WriteFile(to, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := os.ReadFile(to); err != nil || string(has) != want {
		t.Errorf("%s is not what deploy/%s makes (%v): go test -update", to, from, err)
	}
}

// block is an object of a template, and the condition under which it is made.
type block struct{ guard, text string }

// conditions end one and begin another.
func conditions(from, to string) string {
	switch {
	case from == to:
		return ""
	case from == "":
		return "{{- if " + to + " }}\n"
	case to == "":
		return "{{- end }}\n"
	default:
		return "{{- end }}\n{{- if " + to + " }}\n"
	}
}

// blocks are a manifest with the namespace and labels that kustomize adds; in a template
// only for the modes that have it, and with what beside-kubevirt has instead.
func blocks(t *testing.T, document string, byMode map[string]objects, template bool) []block {
	t.Helper()
	document = strings.TrimSuffix(document, "\n") + "\n"
	if strings.Contains(document, "{{") {
		t.Fatalf("a template has to quote this:\n%s", document)
	}
	var object map[string]any
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Fatal(err)
	}
	name := key(object)
	if slices.Contains([]string{"ServiceAccount", "Role", "RoleBinding", "ResourceQuota", "Service"}, get[string](t, object, "kind")) {
		name = strings.Replace(name, "<nil>", namespace, 1)
	}
	is, other := byMode["complete"][name], byMode["beside"][name]
	document = completed(t, document, is)
	if !template {
		return []block{{text: document}}
	}
	document = strings.ReplaceAll(document, namespace, "{{ .Release.Namespace }}")
	both := ""
	if byMode["agents"][name] == nil {
		both = ".Values.controller.enabled"
	}
	if reflect.DeepEqual(is, other) {
		return []block{{both, document}}
	}
	found := []block{{guard(both, ".Values.withoutKubeVirt"), document}}
	if other != nil {
		text, err := yaml.Marshal(other)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, block{guard(both, "(not .Values.withoutKubeVirt)"), strings.ReplaceAll(string(text), namespace, "{{ .Release.Namespace }}")})
	}
	return found
}

// guard returns a condition, with another one that may be empty.
func guard(other, condition string) string {
	if other == "" {
		return strings.Trim(condition, "()")
	}
	return "and " + other + " " + condition
}

// completed adds to a manifest's text the metadata that the object has in the cluster.
func completed(t *testing.T, document string, object map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(object["metadata"])
	if err != nil {
		t.Fatal(err)
	}
	added := ""
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "name:") {
			added += "  " + line
		}
	}
	return regexp.MustCompile(`(?m)^metadata:\n  name: .*\n`).ReplaceAllString(document, "${0}"+added)
}
