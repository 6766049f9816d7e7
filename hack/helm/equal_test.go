package helm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

// same compares two clusters object by object.
func same(t *testing.T, want, got objects) {
	t.Helper()
	for name, object := range want {
		if is, ok := got[name]; !ok {
			t.Errorf("the chart lacks %s", name)
		} else if diff := cmp.Diff(object, is); diff != "" {
			t.Errorf("%s of kustomize (-) and of the chart (+):\n%s", name, diff)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("only the chart has %s", name)
		}
	}
}

// TestTheChartIsTheManifests compares every object of every mode.
func TestTheChartIsTheManifests(t *testing.T) {
	const policies = "CustomResourceDefinition <nil> evacuationpolicies.vmgrace.io"
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			want := manifests(t, "", mode.dirs...)
			want[policies] = manifests(t, "", "controller")[policies] // Helm makes it in each mode
			same(t, want, install(t, mode.values).all())
		})
	}
	t.Run("monitoring at another port", func(t *testing.T) {
		want := manifests(t, patches("DaemonSet", `
{op: replace, path: /spec/template/spec/containers/0/args/0, value: "--metrics-address=[$(HOST_IP)]:19469"}
{op: replace, path: /spec/template/spec/containers/0/ports/0/containerPort, value: 19469}
{op: replace, path: /spec/template/spec/containers/0/livenessProbe/httpGet/port, value: 19469}
{op: replace, path: /spec/template/spec/containers/0/readinessProbe/httpGet/port, value: 19469}`), "crds", "monitoring", "controller")
		same(t, want, install(t, "{monitoring: true, agent: {metricsPort: 19469}}").all())
	})
}

// TestAnUpgradeIsAnInstallation renders both, and a second release somewhere else: whatever
// its name is, the objects are the same, and all are in its namespace.
func TestAnUpgradeIsAnInstallation(t *testing.T) {
	first := install(t, "")
	next, err := render(t, "", common.ReleaseOptions{Name: "another", Namespace: namespace, Revision: 2, IsUpgrade: true})
	if err != nil {
		t.Fatal(err)
	}
	same(t, first.all(), next.all())

	other, err := render(t, "", common.ReleaseOptions{Name: "vmgrace", Namespace: "elsewhere", Revision: 1, IsInstall: true})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(other.all()) + other.notes; strings.Contains(text, namespace) || !strings.Contains(text, "--migration-ca-namespace=elsewhere") {
		t.Errorf("in another namespace:\n%s", text)
	}
}

// TestUninstallLeavesTheCRDs: Helm deletes the objects of templates, and never those of crds.
func TestUninstallLeavesTheCRDs(t *testing.T) {
	r := install(t, "")
	for name := range r.templates {
		if strings.HasPrefix(name, "CustomResourceDefinition ") || strings.HasPrefix(name, "Namespace ") {
			t.Errorf("helm uninstall deletes %s, and VMs with it", name)
		}
	}
	// As deploy/crds/run asks whose a CRD is.
	for name, crd := range r.crds {
		if get[string](t, crd, "metadata", "labels", "app.kubernetes.io/part-of") != "vmgrace" {
			t.Errorf("deploy/crds/run takes %s for somebody else's", name)
		}
	}
	if len(r.crds) != 4 {
		t.Errorf("%d CRDs", len(r.crds))
	}
}

func TestHelmLintFindsNothing(t *testing.T) {
	for _, mode := range modes {
		values := map[string]any{}
		if err := yaml.Unmarshal([]byte(mode.values), &values); err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.RunAll(dir, values, namespace).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", mode.name, m)
			}
		}
	}
}

func TestTheChartsVersionIsTheImages(t *testing.T) {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	image := get[string](t, kustomize(t, "", "controller")["Deployment "+namespace+" cluster-controller"], "spec", "template", "spec", "containers", 0, "image")
	_, version, _ := strings.Cut(image, ":")
	if m := chart.Metadata; m.AppVersion != version || "v"+m.Version != version {
		t.Errorf("deploy/version is %s, the chart's version %s, its appVersion %s", version, m.Version, m.AppVersion)
	}
	for i, part := range chart.Dependencies() {
		if is, asked := part.Metadata.Version, chart.Metadata.Dependencies[i].Version; is != chart.Metadata.Version || asked != is {
			t.Errorf("the version of %s is %s, %s is asked for", part.Name(), is, asked)
		}
	}
}

func TestTheNotesSayWhatRuns(t *testing.T) {
	for values, want := range map[string][]string{
		"":                       {"vmgrace v", "deployment/cluster-controller", "deploy/crds/run apply"},
		"withoutKubeVirt: false": {"asks KubeVirt", "deployment/cluster-controller"},
		"{withoutKubeVirt: false, controller: {enabled: false}, image: {tag: v9}}": {"vmgrace v9", "no cluster-controller"},
	} {
		notes := install(t, values).notes
		for _, w := range append(want, "daemonset/node-agent", "evacuationpolicies.yaml") {
			if !strings.Contains(notes, w) {
				t.Errorf("%q: no %q in\n%s", values, w, notes)
			}
		}
		if strings.Contains(notes, "deploy/crds/run") != (values == "") {
			t.Errorf("%q: KubeVirt's CRDs in\n%s", values, notes)
		}
	}
}
