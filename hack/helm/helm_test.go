// Package helm checks deploy/chart with Helm's own library: it makes what kubectl apply -k
// makes, and each value changes what it says and nothing else.
package helm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	deploy    = "../../deploy"
	dir       = deploy + "/chart"
	namespace = "vmgrace-system"
)

// objects are what a cluster is given, by kind, namespace and name.
type objects map[string]map[string]any

// add puts the objects of a stream in, each once.
func (o objects) add(t *testing.T, stream string) {
	t.Helper()
	for text := range strings.SplitSeq(stream, "\n---") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if len(object) == 0 {
			continue
		}
		k := key(object)
		if _, twice := o[k]; twice {
			t.Fatalf("%s twice", k)
		}
		o[k] = object
	}
}

// key names an object.
func key(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	return fmt.Sprint(object["kind"], " ", metadata["namespace"], " ", metadata["name"])
}

// release is a render: what becomes objects, and what Helm then says.
type release struct {
	templates, crds objects
	notes           string
}

// all are the objects of both.
func (r release) all() objects {
	all := objects{}
	for _, part := range []objects{r.templates, r.crds} {
		for k, object := range part {
			all[k] = object
		}
	}
	return all
}

// render does what helm template does, with values as YAML.
func render(t *testing.T, values string, options common.ReleaseOptions) (release, error) {
	t.Helper()
	chart, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	if err := chartutil.ProcessDependencies(chart, given); err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(chart, given, options, nil)
	if err != nil {
		return release{}, err
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(t.Context(), chart, all)
	if err != nil {
		return release{}, err
	}
	r := release{templates: objects{}, crds: objects{}}
	for name, text := range files {
		if filepath.Base(name) == "NOTES.txt" {
			r.notes = text
			continue
		}
		r.templates.add(t, text)
	}
	for _, crd := range chart.CRDObjects() {
		r.crds.add(t, string(crd.File.Data))
	}
	return r, nil
}

// install renders a first installation, which has to work.
func install(t *testing.T, values string) release {
	t.Helper()
	r, err := render(t, values, common.ReleaseOptions{Name: "vmgrace", Namespace: namespace, Revision: 1, IsInstall: true})
	if err != nil {
		t.Fatalf("%s: %v", values, err)
	}
	return r
}

// kustomize builds directories of deploy with further patches.
func kustomize(t *testing.T, patches string, dirs ...string) objects {
	t.Helper()
	here, err := filepath.Abs(deploy)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text := "resources:\n"
	for _, d := range dirs {
		path, err := filepath.Rel(overlay, filepath.Join(here, d))
		if err != nil {
			t.Fatal(err)
		}
		text += "- " + path + "\n"
	}
	if patches != "" {
		text += "patches:\n" + patches
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), overlay)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	found := objects{}
	for _, resource := range built.Resources() {
		// Not by AsYaml: what it writes for a folded text reads as another one.
		var object map[string]any
		if err := resource.YNode().Decode(&object); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		found.add(t, string(text))
	}
	return found
}

// manifests are what the chart stands for: kustomize's objects without the namespace, which
// Helm makes for a release or finds there.
func manifests(t *testing.T, patches string, dirs ...string) objects {
	t.Helper()
	found := kustomize(t, patches, dirs...)
	delete(found, "Namespace <nil> "+namespace)
	return found
}

// get follows a path of names and indexes.
func get[T any](t *testing.T, from any, path ...any) T {
	t.Helper()
	for _, step := range path {
		switch in := from.(type) {
		case map[string]any:
			name, _ := step.(string)
			from = in[name]
		case []any:
			index, _ := step.(int)
			from = in[index]
		default:
			t.Fatalf("%v of %v: there is no %v", path, from, step)
		}
	}
	is, ok := from.(T)
	if !ok {
		t.Fatalf("%v is %v", path, from)
	}
	return is
}
