package cluster_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: kept}
data: {key: value}
`

func get(t *testing.T, c cluster.Client) string {
	t.Helper()
	return c.Kubectl(t, "get", "configmap", "kept", "-o", "jsonpath={.data.key}")
}

func TestAPIServerKeepsItsDataAndPort(t *testing.T) {
	a := shared
	a.KubectlApply(t, configMap)

	for name, end := range map[string]func(){"stop": a.Stop, "kill": a.Kill} {
		begin := time.Now()
		end()
		t.Logf("%s: down after %v", name, time.Since(begin))
		if _, err := a.TryKubectl(t.Context(), "", "get", "--raw", "/readyz"); err == nil {
			t.Errorf("%s: the server still answers", name)
		}
		begin = time.Now()
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: up again after %v", name, time.Since(begin))
		if got := get(t, a.Client); got != "value" {
			t.Errorf("%s: the data is %q afterwards", name, got)
		}
	}
}

func TestFrozenAPIServerIsSilentUntilThawed(t *testing.T) {
	a := shared
	a.KubectlApply(t, configMap)

	if err := a.Freeze(); err != nil {
		t.Fatal(err)
	}
	if a.Ready(t.Context()) {
		t.Error("a frozen server answers")
	}
	if err := a.Thaw(); err != nil {
		t.Fatal(err)
	}

	node.Eventually(t, time.Minute, func() bool { return a.Ready(t.Context()) }, "the thawed server is ready")
	if got := get(t, a.Client); got != "value" {
		t.Errorf("the data is %q afterwards", got)
	}
}

func TestIdentitiesAreWhoTheySay(t *testing.T) {
	a := shared
	a.Kubectl(t, "create", "serviceaccount", "agent")

	for name, tc := range map[string]struct {
		client cluster.Client
		want   string
	}{
		"user":            {a.As(t, "jane", "dev", "ops"), "jane [dev ops system:authenticated]"},
		"service account": {a.ServiceAccount(t, "default", "agent"), "system:serviceaccount:default:agent"},
	} {
		t.Run(name, func(t *testing.T) {
			who := tc.client.Kubectl(t, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}")
			who = strings.NewReplacer(`"`, "", ",", " ").Replace(who)
			if !strings.HasPrefix(who, tc.want) {
				t.Errorf("the server sees %s, want %s", who, tc.want)
			}
			if _, err := tc.client.TryKubectl(t.Context(), "", "get", "secrets"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
				t.Errorf("without a role it may read secrets: %v", err)
			}
		})
	}
}

func TestNothingOutlivesAnAPIServer(t *testing.T) {
	defer goleak.VerifyNone(t)
	a, err := cluster.StartAPI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Freeze(); err != nil {
		t.Fatal(err)
	}

	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	if a.Ready(t.Context()) {
		t.Error("the server still answers")
	}
	if _, err := os.Stat(a.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is left over: %v", a.Dir, err)
	}
}
