//go:build !unit

// Package migrations tests cluster-controller against a real API server. It applies the
// shipped manifests and uses only the rights that they grant. The tests play the agents:
// they write what agents write, with a token of the agent's node. They also play the
// kubelet and the scheduler. test/e2e has the whole.
package migrations

import (
	"context"
	"errors"
	"os"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/rig"
)

// shared holds what all tests use.
var shared struct {
	*rig.Rig

	agents map[string]client.Client // by node; each has a token of its node
}

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(func(a *cluster.API) int { return rig.Main(m, a, start) }))
}

func start(a *cluster.API) (err error) {
	shared.Rig, err = rig.Start(a, "cluster-controller", "apply -k ../../deploy/daemonset", "apply -k ../../deploy/controller",
		"delete -f ../../deploy/controller/webhooks.yaml") // nothing routes to its Service here
	if err != nil {
		return err
	}
	shared.Never = append(shared.Never, "forbidden: User")
	shared.agents = map[string]client.Client{}
	for _, name := range []string{"node-a", "node-b", "node-c"} {
		if err := makeNode(name); err != nil {
			return err
		}
	}
	return nil
}

// makeNode makes a Node, and a client whose token is bound to an agent's pod on it. The API
// server takes the agent's node from that token.
func makeNode(name string) error {
	ctx := context.Background()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Ours, Name: "node-agent-" + name},
		Spec: corev1.PodSpec{NodeName: name, ServiceAccountName: "node-agent", Containers: []corev1.Container{{Name: "agent", Image: "x"}}}}
	if err := errors.Join(shared.TryMake(ctx, n, rig.NodeReady), shared.TryMake(ctx, pod, "")); err != nil {
		return err
	}
	c, err := agentOf(ctx, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
	shared.agents[name] = c
	return err
}

// agentOf returns a client with a token of the agents' service account, bound to this pod.
// The token of nil names no node.
func agentOf(ctx context.Context, pod *authenticationv1.BoundObjectReference) (client.Client, error) {
	token := &authenticationv1.TokenRequest{}
	token.Spec.BoundObjectRef = pod
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: rig.Ours, Name: "node-agent"}}
	if err := shared.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(shared.Config)
	cfg.BearerToken, cfg.QPS = token.Status.Token, -1
	return client.New(cfg, client.Options{Scheme: shared.Scheme()})
}

// controller starts one cluster-controller with the shipped rights.
func controller(t *testing.T, args ...string) *node.Process {
	t.Helper()
	return shared.Begin(t, append([]string{
		"--kubeconfig=" + shared.ServiceAccount(t, rig.Ours, "cluster-controller").Kubeconfig, "--metrics-address=", "--health-address=", "--log-format=json", "-v",
		"--namespace=" + rig.Ours, "--controllers=disruption-budgets,evacuation,migration", "--leader-elect=false",
	}, args...)...)
}
