package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/vmgrace/vmgrace"

// pkg is what go list prints about a package. Deps is the closure of Imports.
type pkg struct {
	ImportPath, Dir, Doc, Name               string
	GoFiles, CgoFiles, TestGoFiles           []string
	XTestGoFiles, Imports, Deps, TestImports []string
	Standard                                 bool
}

// short returns the path below the module: "pkg/grace".
func (p pkg) short() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// list runs go list for packages, with their files, imports and doc comments.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-tags", "libvirt_dlopen", "-json"}, args...)...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

// below reports whether path is root or below it. root is a package or a module.
func below(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

func TestOnlyOnePackageImportsEachBigLibrary(t *testing.T) {
	homes := map[string][]string{
		"github.com/fsnotify/fsnotify":   {"pkg/signals/watch", "internal/shim"},
		"libvirt.org/go/libvirt":         {"pkg/hypervisor/libvirt"},
		"github.com/prometheus":          {"internal/node/metrics", "internal/cluster"},
		"k8s.io":                         {"internal/node/kube", "internal/cluster", "internal/plugin", "api", "test/objects", "test/rig", "test/kubevirt"},
		"sigs.k8s.io/controller-runtime": {"internal/cluster", "internal/plugin", "test/rig", "test/kubevirt"},
		"github.com/open-policy-agent":   {"internal/cluster/webhookcerts"},
		"github.com/spf13/pflag":         {"cmd", "internal/node", "internal/shim", "internal/cluster", "internal/plugin"},
		"github.com/spf13/cobra":         {"internal/plugin"},
		module + "/test/node":            {"test"},
		"github.com/vmgrace/vmgrace/cmd": nil, // no package may
	}
	for _, p := range list(t, "./...") {
		for _, path := range p.Imports {
			for library, home := range homes {
				allowed := slices.ContainsFunc(home, func(h string) bool { return below(p.short(), h) })
				if below(path, library) && !allowed {
					t.Errorf("%s imports %s, which only %q may", p.short(), path, home)
				}
			}
		}
	}
}

// Given the folders of the programs, then none knows another: what two of them share are the
// rules, the API's types, and pure packages. Otherwise a change for one side could break the other.
func TestEachFolderKnowsOnlyWhatItMay(t *testing.T) {
	may := map[string][]string{
		"cmd":              {"internal"},
		"internal/node":    {"internal/logs", "internal/rules", "api", "pkg"},
		"internal/shim":    {"api", "pkg"},
		"internal/cluster": {"internal/logs", "internal/rules", "api", "pkg/grace"},
		"internal/plugin":  {"internal/rules", "api"},
		"internal/rules":   {"api"},
		"internal/logs":    nil,
		"api":              nil,
		"pkg":              {"api/launcherpod"}, // names
	}
	for _, p := range list(t, "./cmd/...", "./internal/...", "./api/...", "./pkg/...") {
		home, known := "", false
		for folder := range may {
			if below(p.short(), folder) {
				home, known = folder, true
			}
		}
		if !known {
			t.Errorf("%s is in none of the folders that docs/architecture.md draws", p.short())
		}
		for _, path := range p.Imports {
			short, ours := strings.CutPrefix(path, module+"/")
			if ours && !below(short, home) && !slices.ContainsFunc(may[home], func(m string) bool { return below(short, m) }) {
				t.Errorf("%s imports %s; %s may import %q", p.short(), short, home, may[home])
			}
		}
	}
}

// Given the programs of the node, then of the rules they have only these. The node's agent does
// not decide for the cluster.
func TestTheNodesProgramsHaveFewOfTheRules(t *testing.T) {
	shared := []string{"internal/rules/evacuation", "internal/rules/migration", "internal/rules/oneline"}
	for _, p := range list(t, "-deps", "./cmd/node-agent", "./cmd/launcher-shim") {
		if below(p.short(), "internal/rules") && !slices.Contains(shared, p.short()) {
			t.Errorf("the node's programs contain %s; of the rules they may have %v", p.short(), shared)
		}
	}
}

func TestTheAPITypesNeedNoCoreAPI(t *testing.T) {
	for _, p := range list(t, "./api/...") {
		for _, path := range p.Deps {
			if below(path, "k8s.io/api") || below(path, "k8s.io/client-go") {
				t.Errorf("%s contains %s: the node's programs would too", p.short(), path)
			}
		}
	}
}

// Given the packages that decide for the cluster, then they import nothing that does I/O.
// KubeVirt's types are allowed, because the rules are about them. They bring metadata
// along.
func TestTheRulesOfTheClusterDoNoIO(t *testing.T) {
	allowed := []string{"cmp", "crypto/sha256", "encoding/hex", "errors", "fmt", "maps", "math", "path", "slices", "strconv", "strings", "time", module + "/api/kubevirt", module + "/api/v1alpha1", module + "/internal/rules/oneline", module + "/internal/rules/migration"}
	for _, p := range list(t, "./internal/rules/...", "./api/launcherpod/status") {
		for _, path := range p.Imports {
			if !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s; it may import %v", p.short(), path, allowed)
			}
		}
	}
}

func TestTheCoreDoesNoIO(t *testing.T) {
	allowed := []string{"cmp", "crypto/sha256", "encoding/hex", "errors", "fmt", "maps", "math", "slices", "strconv", "strings", "time"}
	for _, p := range list(t, "./pkg/grace") {
		for _, path := range p.Imports {
			if !slices.Contains(allowed, path) {
				t.Errorf("the core imports %s; it may import %v", path, allowed)
			}
		}
	}
}

// Given the packages of the agent's loop and of the controllers, then none imports another.
// The loop over one VM uses libvirt, the disk and the API server through interfaces of its
// own. The controllers share small packages, but do not know each other.
func TestNeitherTheLoopNorAControllerImportsAnother(t *testing.T) {
	imports := map[string][]string{
		"internal/node/agent": {"internal/node/deadline", "internal/logs", "pkg/grace", "pkg/hypervisor", "pkg/process", "pkg/signals", "pkg/signals/watch"},
	}
	for _, controller := range []string{"budget", "disruption", "evacuation", "eviction", "launcher", "migration", "nodecerts", "sweep", "taints", "webhookcerts"} {
		imports["internal/cluster/"+controller] = []string{
			"api/kubevirt", "api/launcherpod", "api/v1alpha1", "internal/rules/evacuation", "internal/rules/oneline", "internal/rules/migration", "internal/rules/launcher", "internal/rules/taints",
			"internal/cluster/index", "internal/cluster/move", "internal/cluster/metrics", "internal/cluster/patch", "internal/cluster/retry", "internal/cluster/settings",
		}
	}
	for importer, allowed := range imports {
		for _, path := range list(t, "./"+importer)[0].Imports {
			if short, ours := strings.CutPrefix(path, module+"/"); ours && !slices.Contains(allowed, short) {
				t.Errorf("%s imports %s; of this module it may import %v", importer, short, allowed)
			}
		}
	}
}

func TestTheBinariesStaySmall(t *testing.T) {
	for name, forbidden := range map[string][]string{
		"launcher-shim": {
			"libvirt.org/go/libvirt", "github.com/prometheus", "k8s.io",
			"net/http", module + "/pkg/hypervisor", module + "/pkg/gracecache", module + "/internal/node/agent",
		},
		"node-agent": {"k8s.io/api"}, // its init functions alone load all of it
	} {
		for _, path := range list(t, "./cmd/"+name)[0].Deps {
			if slices.ContainsFunc(forbidden, func(f string) bool { return below(path, f) }) {
				t.Errorf("%s contains %s", name, path)
			}
		}
	}
}

func TestOnlyTestsImportTesting(t *testing.T) {
	for _, p := range list(t, "./...") {
		if below(p.short(), "test/drivertest") {
			continue // the drivers' tests call this suite
		}
		if slices.Contains(p.Imports, "testing") {
			t.Errorf("%s imports testing outside of a test", p.short())
		}
	}
}

func TestEveryDependencyIsExplained(t *testing.T) {
	text, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../hack/*/go.mod")
	if err != nil || len(files) == 0 {
		t.Fatalf("the modules in hack: %v, %v", files, err)
	}
	for _, file := range append(files, "../../go.mod", "../../tools/go.mod") {
		for _, path := range direct(t, file) {
			if !strings.Contains(string(text), "`"+path+"`") {
				t.Errorf("docs/dependencies.md does not say why %s has %s", filepath.Clean(file), path)
			}
		}
	}
}

// direct returns the modules that a go.mod itself requires: its direct requirements and its
// tools.
func direct(t *testing.T, file string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", file).Output()
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool []struct{ Path string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var paths []string
	for _, r := range mod.Require {
		tool := slices.ContainsFunc(mod.Tool, func(p struct{ Path string }) bool { return below(p.Path, r.Path) })
		if !r.Indirect || tool {
			paths = append(paths, r.Path)
		}
	}
	return paths
}
