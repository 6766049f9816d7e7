package helm

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

// changes are values with the JSON patches of the DaemonSet and of the Deployment that say
// the same to kustomize.
var changes = []struct{ values, agent, controller string }{
	{"image: {registry: 'registry.example:5000/mirror', tag: v9, pullPolicy: Always, pullSecrets: [{name: registry}]}", `
{op: replace, path: /spec/template/spec/containers/0/image, value: "registry.example:5000/mirror/vmgrace/node-agent:v9"}
{op: replace, path: /spec/template/spec/containers/0/imagePullPolicy, value: Always}
{op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: registry}]}`, `
{op: replace, path: /spec/template/spec/containers/0/image, value: "registry.example:5000/mirror/vmgrace/cluster-controller:v9"}
{op: replace, path: /spec/template/spec/containers/0/imagePullPolicy, value: Always}
{op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: registry}]}`},
	{"{agent: {image: {repository: my/agent, digest: '" + digest + "'}}, controller: {image: {repository: my/controller, digest: '" + digest + "'}}}", `
{op: replace, path: /spec/template/spec/containers/0/image, value: "docker.io/my/agent:VERSION@` + digest + `"}`, `
{op: replace, path: /spec/template/spec/containers/0/image, value: "docker.io/my/controller:VERSION@` + digest + `"}`},
	{`agent:
  resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}
  tolerations: [{key: vms, operator: Exists}]
  nodeSelector: {vms: "true"}
  affinity: {nodeAffinity: {a: b}}`, `
{op: replace, path: /spec/template/spec/containers/0/resources, value: {requests: {cpu: 1, memory: 64Mi}, limits: {memory: 1Gi}}}
{op: replace, path: /spec/template/spec/tolerations, value: [{key: vms, operator: Exists}]}
{op: add, path: /spec/template/spec/nodeSelector/vms, value: "true"}
{op: add, path: /spec/template/spec/affinity, value: {nodeAffinity: {a: b}}}`, ``},
	{`controller:
  replicas: 3
  resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}
  tolerations: []
  nodeSelector: {zone: a}
  affinity: {podAffinity: {a: b}}`, ``, `
{op: replace, path: /spec/replicas, value: 3}
{op: replace, path: /spec/template/spec/containers/0/resources, value: {requests: {cpu: 1, memory: 64Mi}, limits: {memory: 1Gi}}}
{op: remove, path: /spec/template/spec/tolerations}
{op: add, path: /spec/template/spec/nodeSelector/zone, value: a}
{op: replace, path: /spec/template/spec/affinity, value: {podAffinity: {a: b}}}`},
	{"agent: {kubeletDir: /data/kubelet}", `
{op: add, path: /spec/template/spec/containers/0/args/-, value: --kubelet-dir=/data/kubelet}
{op: replace, path: /spec/template/spec/containers/0/volumeMounts/4/mountPath, value: /data/kubelet/pods}
{op: replace, path: /spec/template/spec/volumes/4/hostPath/path, value: /data/kubelet/pods}`, ``},
	{"agent: {libvirt: {uri: ''}}", `
{op: add, path: /spec/template/spec/containers/0/args/-, value: --libvirt-uri=}
{op: remove, path: /spec/template/spec/containers/0/volumeMounts/1}
{op: remove, path: /spec/template/spec/containers/0/volumeMounts/0}
{op: remove, path: /spec/template/spec/volumes/1}
{op: remove, path: /spec/template/spec/volumes/0}`, ``},
	{"agent: {libvirt: {uri: 'qemu:///system?socket=/run/libvirt/other', dir: /opt/libvirt/run}}", `
{op: add, path: /spec/template/spec/containers/0/args/-, value: "--libvirt-uri=qemu:///system?socket=/run/libvirt/other"}
{op: replace, path: /spec/template/spec/volumes/0/hostPath/path, value: /opt/libvirt/run}`, ``},
	{"agent: {migrationListen: ''}", `
{op: remove, path: /spec/template/spec/containers/0/args/2}`, ``},
	{"agent: {migrationListen: ':19470', metricsPort: 19469}", `
{op: replace, path: /spec/template/spec/containers/0/args/0, value: "--metrics-address=127.0.0.1:19469"}
{op: replace, path: /spec/template/spec/containers/0/args/2, value: "--migration-listen=:19470"}
{op: replace, path: /spec/template/spec/containers/0/livenessProbe/httpGet/port, value: 19469}
{op: replace, path: /spec/template/spec/containers/0/readinessProbe/httpGet/port, value: 19469}`, ``},
	{"{agent: {flags: {node-shutdown-timeout: 330s, dry-run: true, verbose: 1}}, controller: {flags: {certificate-validity: 720h}}}", `
{op: add, path: /spec/template/spec/containers/0/args/-, value: --dry-run=true}
{op: add, path: /spec/template/spec/containers/0/args/-, value: --node-shutdown-timeout=330s}
{op: add, path: /spec/template/spec/containers/0/args/-, value: --verbose=1}`, `
{op: add, path: /spec/template/spec/containers/0/args/-, value: --certificate-validity=720h}`},
}

// patches are those of a change, as a kustomization has them.
func patches(kind, lines string) string {
	if lines == "" {
		return ""
	}
	return "- target: {kind: " + kind + "}\n  patch: |-" + strings.ReplaceAll(lines, "\n", "\n    - ") + "\n"
}

var digest = "sha256:" + strings.Repeat("0123456789abcdef", 4)

// TestEachValueChangesWhatItSays and nothing else.
func TestEachValueChangesWhatItSays(t *testing.T) {
	chart, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		t.Run(change.values, func(t *testing.T) {
			all := strings.ReplaceAll(patches("DaemonSet", change.agent)+patches("Deployment", change.controller), "VERSION", chart.AppVersion())
			same(t, manifests(t, all, "crds", "."), install(t, change.values).all())
		})
	}
}

// settings are values that are an object each: the value is in it as it was given.
var settings = []struct{ values, key, spec string }{
	{"evacuationPolicy: {launcherPadding: 60s, taintReplacement: {maxTaintedNodes: 20%, options: [{key: '*', durationInSeconds: -1}]}}",
		"EvacuationPolicy <nil> default",
		"{launcherPadding: 60s, taintReplacement: {maxTaintedNodes: 20%, options: [{key: '*', durationInSeconds: -1}]}}"},
	{"kubevirtConfiguration: {evictionStrategy: LiveMigrate, developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration]}, migrations: {bandwidthPerMigration: 64Mi}}",
		"KubeVirt " + namespace + " vmgrace",
		"configuration: {evictionStrategy: LiveMigrate, developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration]}, migrations: {bandwidthPerMigration: 64Mi}}"},
}

func TestTheSettingsOfTheClusterAreObjects(t *testing.T) {
	for _, s := range settings {
		var spec map[string]any
		if err := yaml.Unmarshal([]byte(s.spec), &spec); err != nil {
			t.Fatal(err)
		}
		got := install(t, s.values).all()
		same(t, objects{"spec": spec}, objects{"spec": get[map[string]any](t, got[s.key], "spec")})
		delete(got, s.key)
		same(t, manifests(t, "", "crds", "."), got)
	}
}

// TestEachValueIsTried: by the tests above, or by those of the modes.
func TestEachValueIsTried(t *testing.T) {
	tried := []string{"withoutKubeVirt", "controller.enabled", "monitoring", "evacuationPolicy", "kubevirtConfiguration"}
	for _, change := range changes {
		var given map[string]any
		if err := yaml.Unmarshal([]byte(change.values), &given); err != nil {
			t.Fatal(err)
		}
		tried = slices.AppendSeq(tried, maps.Keys(leaves("", given)))
	}
	chart, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for path := range leaves("", chart.Values) {
		if !slices.Contains(tried, path) {
			t.Errorf("no test changes %s", path)
		}
	}
}

// leaves are the values by their paths: those whose names are the user's are one each.
func leaves(path string, value any) map[string]any {
	in, _ := value.(map[string]any)
	_, name, _ := strings.Cut(path, ".")
	if len(in) == 0 || slices.Contains([]string{"resources", "nodeSelector", "affinity", "flags"}, name) {
		return map[string]any{path: value}
	}
	found := map[string]any{}
	for name, below := range in {
		maps.Copy(found, leaves(strings.TrimPrefix(path+"."+name, "."), below))
	}
	return found
}

// refused are values that Helm must not take, with a part of why.
var refused = map[string]string{
	"{images: {tag: v9}}":                        "images",
	"{agent: {kubeletdir: /data}}":               "kubeletdir",
	"{agent: {kubeletDir: data}}":                "kubeletDir",
	"{agent: {kubeletDir: /data/}}":              "kubeletDir",
	"{agent: {flags: {kubelet-dir: /data}}}":     "kubelet-dir",
	"{agent: {flags: {shutdown-mode: loud}}}":    "shutdown-mode",
	"{agent: {flags: {destroy-timeout: 10}}}":    "destroy-timeout",
	"{agent: {resources: {request: {cpu: 1}}}}":  "request",
	"{agent: {image: {digest: latest}}}":         "digest",
	"{agent: {libvirt: false}}":                  "libvirt",
	"{controller: {mode: none}}":                 "mode",
	"{withoutKubeVirt: none}":                    "withoutKubeVirt",
	"{crds: {install: false}}":                   "install",
	"{controller: {replicas: 0}}":                "replicas",
	"{monitoring: 'yes'}":                        "monitoring",
	"{image: {pullPolicy: Sometimes}}":           "pullPolicy",
	"{image: {pullSecrets: [registry]}}":         "pullSecrets",
	"{evacuationPolicy: {launcherpadding: 60s}}": "launcherpadding",
	"{kubevirtConfiguration: {developerConfiguration: {featureGates: [LiveMigration]}}}": "featureGates",
	"{kubevirtConfiguration: {migrations: {parallel: 1}}}":                               "parallel",
	// Nobody reads it, or KubeVirt's own counts.
	"{evacuationPolicy: {launcherPadding: 60s}, controller: {enabled: false}}":            "nobody reads it",
	"{kubevirtConfiguration: {evictionStrategy: External}, withoutKubeVirt: false}":       "only with cluster-controller and without KubeVirt",
	"{kubevirtConfiguration: {evictionStrategy: External}, controller: {enabled: false}}": "only with cluster-controller and without KubeVirt",
}

func TestAWrongValueIsRefused(t *testing.T) {
	for values, want := range refused {
		_, err := render(t, values, common.ReleaseOptions{Name: "vmgrace", Namespace: namespace, IsInstall: true})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
	install(t, "global: {of: a parent chart}")
}

// names are the properties of a schema, with those below them.
func names(schema map[string]any) map[string]any {
	if items, ok := schema["items"].(map[string]any); ok {
		return names(items)
	}
	properties, _ := schema["properties"].(map[string]any)
	found := map[string]any{}
	for name, below := range properties {
		below, _ := below.(map[string]any)
		found[name] = names(below)
	}
	return found
}

// schema reads values.schema.json.
func schema(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(dir + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTheSchemaHasTheFieldsOfTheSettings: of the CRDs, no more and no fewer.
func TestTheSchemaHasTheFieldsOfTheSettings(t *testing.T) {
	crds, all := install(t, "").crds, schema(t)
	for value, path := range map[string][]any{
		"evacuationPolicy":      {"evacuationpolicies.vmgrace.io", "spec"},
		"kubevirtConfiguration": {"kubevirts.kubevirt.io", "spec", "properties", "configuration"},
	} {
		crd := crds["CustomResourceDefinition <nil> "+path[0].(string)] //nolint:errcheck // written above
		steps := append([]any{"spec", "versions", 0, "schema", "openAPIV3Schema", "properties"}, path[1:]...)
		want, got := names(get[map[string]any](t, crd, steps...)), names(get[map[string]any](t, all, "properties", value))
		same(t, objects{value: want}, objects{value: got})
	}
}

// TestTheSchemaNamesFlagsThatExist reads the programs' sources: their packages need cgo.
func TestTheSchemaNamesFlagsThatExist(t *testing.T) {
	for part, files := range map[string][]string{
		"agent":      {"internal/node/options.go", "internal/node/migrationoptions.go"},
		"controller": {"internal/cluster/options.go"},
	} {
		source := ""
		for _, file := range files {
			text, err := os.ReadFile("../../" + file)
			if err != nil {
				t.Fatal(err)
			}
			source += string(text)
		}
		flags := get[map[string]any](t, schema(t), "properties", part, "properties", "flags", "properties")
		if len(flags) < 4 {
			t.Errorf("%d flags of the %s", len(flags), part)
		}
		for flag := range flags {
			if !regexp.MustCompile(`Var[A-Z]?P?\(&o\.\w+, "` + flag + `"`).MatchString(source) {
				t.Errorf("the %s has no flag --%s", part, flag)
			}
		}
	}
}
