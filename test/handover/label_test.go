//go:build !unit

package handover

import (
	"context"
	"testing"

	"github.com/vmgrace/vmgrace/test/node"
)

// Given two agents that take migrations. Then their Nodes say so. When an agent is killed,
// then its label stays. When one without --migration-listen takes its place, then the label
// goes: no VM should be sent there.
func TestANodeSaysWhetherItsAgentTakesMigrations(t *testing.T) {
	for _, name := range []string{"node-a", "node-b"} {
		shared.api.KubectlApply(t, "{apiVersion: v1, kind: Node, metadata: {name: "+name+"}}")
		t.Cleanup(func() {
			if out, err := shared.api.TryKubectl(context.Background(), "", "delete", "node", name); err != nil {
				t.Errorf("%s: %v", out, err)
			}
		})
	}
	says := func(name, want string) func() bool {
		return func() bool {
			return shared.api.Kubectl(t, "get", "node", name, "-o", `jsonpath={.metadata.labels.vmgrace\.io/takes-migrations}`) == want
		}
	}
	w := given(t)
	for _, h := range []*host{w.a, w.b} {
		node.Eventually(w, soon, says(h.name, "true"), "%s says that it takes migrations", h.name)
	}
	w.a.agent.Kill()
	if !says("node-a", "true")() {
		t.Error("the label went with the agent")
	}
	w.a.ClusterAgent(w, w.api.Kubeconfig, w.a.name).Start(w)
	node.Eventually(w, soon, says("node-a", ""), "node-a says nothing")
	if !says("node-b", "true")() {
		t.Error("node-b does not say that it takes migrations")
	}
}
