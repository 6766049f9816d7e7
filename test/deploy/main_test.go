package deploy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

var (
	api     *cluster.API
	machine *node.Node
)

func TestMain(m *testing.M) {
	os.Exit(node.Main(func(n *node.Node) int {
		machine = n
		return cluster.Main(func(a *cluster.API) int { api = a; return m.Run() })
	}))
}

// root is the path from here to the project's directory.
const root = "../../"

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(root + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// render returns the manifests that kubectl apply -k would apply.
func render(t *testing.T, dir string) string {
	t.Helper()
	return api.Kubectl(t, "kustomize", root+dir)
}

// object finds the only object of a kind in a stream of manifests. It fails the test where
// a field is unknown to the type.
func object[T any](t *testing.T, manifests, kind string) T {
	t.Helper()
	var found []T
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		if !regexp.MustCompile(`(?m)^kind: ` + kind + `$`).MatchString(text) {
			continue
		}
		var o T
		if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		found = append(found, o)
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of kind %s, want one", len(found), kind)
	}
	return found[0]
}
