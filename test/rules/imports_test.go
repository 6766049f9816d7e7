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
		"github.com/prometheus":          {"internal/metrics", "internal/controller"},
		"k8s.io":                         {"internal/kube", "internal/controller", "internal/vmdrain", "internal/cli", "api", "test/objects", "test/rig", "test/kubevirt"},
		"sigs.k8s.io/controller-runtime": {"internal/controller", "internal/vmdrain", "internal/cli", "test/rig", "test/kubevirt"},
		"github.com/open-policy-agent":   {"internal/controller/webhookcerts"},
		"github.com/spf13/pflag":         {"cmd", "internal/nodeagent", "internal/shim", "internal/controller", "internal/vmdrain", "internal/cli"},
		"github.com/spf13/cobra":         {"internal/vmdrain", "internal/cli"},
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

// Given the packages of the node's programs and of the cluster-controller, then they share
// only pure packages and the API's types. Otherwise a change for one side could break the
// other.
func TestNodeSideAndClusterSideShareOnlyPurePackages(t *testing.T) {
	shared := []string{"api", "internal/evacuation", "internal/migration", "internal/oneline", "pkg/grace", "internal/logs"}
	cluster := list(t, "-deps", "./cmd/cluster-controller")
	node := list(t, "-deps", "./cmd/node-agent", "./cmd/launcher-shim")
	for _, p := range cluster {
		both := slices.ContainsFunc(node, func(n pkg) bool { return n.ImportPath == p.ImportPath })
		if !both || !below(p.ImportPath, module) {
			continue
		}
		if !slices.ContainsFunc(shared, func(s string) bool { return below(p.short(), s) }) {
			t.Errorf("%s is in both cluster-controller and the node's programs; only %v may be", p.short(), shared)
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

func TestNothingInPkgKnowsInternal(t *testing.T) {
	for _, p := range list(t, "./pkg/...") {
		for _, path := range p.Imports {
			if below(path, module+"/internal") || below(path, module+"/cmd") || below(path, module+"/test") {
				t.Errorf("%s imports %s: internal stands above pkg", p.short(), path)
			}
		}
	}
}

// Given the packages that decide for the cluster, then they import nothing that does I/O.
// KubeVirt's types are allowed, because the rules are about them. They bring metadata
// along.
func TestTheRulesOfTheClusterDoNoIO(t *testing.T) {
	allowed := []string{"cmp", "crypto/sha256", "encoding/hex", "errors", "fmt", "maps", "math", "path", "slices", "strconv", "strings", "time", module + "/api/kubevirt", module + "/api/v1alpha1", module + "/internal/oneline", module + "/internal/migration"}
	for _, p := range list(t, "./internal/evacuation", "./internal/migration", "./internal/drain", "./internal/launcher", "./internal/replacement", "./internal/podstatus") {
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
		"internal/agent": {"internal/deadline", "internal/logs", "pkg/grace", "pkg/hypervisor", "pkg/process", "pkg/signals", "pkg/signals/watch"},
	}
	for _, controller := range []string{"budget", "disruption", "evacuation", "eviction", "launcher", "migration", "nodecerts", "sweep", "taints", "webhookcerts"} {
		imports["internal/controller/"+controller] = []string{
			"api/kubevirt", "api/launcherpod", "api/v1alpha1", "internal/evacuation", "internal/oneline", "internal/migration", "internal/launcher", "internal/replacement",
			"internal/controller/index", "internal/controller/move", "internal/controller/metrics", "internal/controller/patch", "internal/controller/retry", "internal/controller/settings",
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
			"net/http", module + "/pkg/hypervisor", module + "/pkg/gracecache", module + "/internal/agent",
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
