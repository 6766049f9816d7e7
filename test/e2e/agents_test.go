package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

func deaf() node.Spec { return node.Spec{Firmware: true} }

// interrupted changes the agents or their node while one VM is in its grace period and
// others run on both nodes. It checks that the deadline stays and that the others go on.
func interrupted(t *testing.T, cause string, grace int, change func(w *world, peaceful *vm)) {
	t.Helper()
	w := given(t)
	all := w.vms(plan{Spec: deaf(), grace: grace, finalizer: true}, plan{Spec: deaf(), grace: 5}, plan{Spec: deaf(), grace: 5, on: w.b})
	dying := all[0]
	w.delete(map[string]string{"VMIDeleted": "vmi/" + dying.Name, "LauncherSignal": dying.launcherPod()}[cause])
	s := dying.begun(cause, time.Duration(grace)*time.Second)
	w.step("one of them in its grace period")

	change(w, all[1])
	w.waitAgents()
	dying.kept(s)
	w.step("agents ready, the deadline is %.1f s away", time.Until(s.deadline).Seconds())
	dying.destroyedAt(s.deadline)
	dying.ended(cause, "Forced", "ShutdownStarted", "ShutdownForced")
	w.untouched(all[1:]...)
	for _, v := range all[1:] {
		v.told()
	}
}

func TestARollingUpdateOfTheAgentsKeepsTheDeadlineAndTouchesNoVM(t *testing.T) {
	interrupted(t, "LauncherSignal", 20, func(w *world, _ *vm) {
		was := w.agent(w.a)
		w.Kubectl(w, "rollout", "restart", "-n", agents, "ds/node-agent")
		w.waitAgents()
		w.step("rolling update")
		if is := w.agent(w.a); is == was {
			w.Errorf("the agent's pod is still %s", is)
		}
	})
}

func TestAnAgentDeletedByForceKeepsTheDeadlineAndTouchesNoVM(t *testing.T) {
	interrupted(t, "VMIDeleted", 12, func(w *world, _ *vm) {
		was := w.agent(w.a)
		w.Kubectl(w, "delete", "pod", "-n", agents, was, "--force", "--grace-period=0")
		node.Eventually(w, soon, func() bool { is := w.agent(w.a); return is != "" && is != was }, "no new agent")
		w.step("another agent's pod")
	})
}

func TestARestartOfKubeletTouchesNoVMAndNoContainer(t *testing.T) {
	interrupted(t, "LauncherSignal", 15, func(w *world, peaceful *vm) {
		w.unchanged(peaceful, "kubelet", w.a.RestartKubelet)
	})
}

// Given a VM whose VMI is deleted, but not its launcher pod. When containerd restarts, then
// the deadline stays, and no container and no other VM is touched. A launcher pod that is
// being deleted would end: kubelet's call to stop its container fails, and kubelet then
// stops the sandbox, which kills the container.
func TestARestartOfContainerdTouchesNoVMAndNoContainer(t *testing.T) {
	interrupted(t, "VMIDeleted", 15, func(w *world, peaceful *vm) {
		w.unchanged(peaceful, "containerd", w.a.RestartContainerd)
	})
}

// unchanged restarts a service on the first node and checks that the containers there stay
// the same.
func (w *world) unchanged(v *vm, name string, restart func(context.Context) error) {
	w.Helper()
	w.waitTold(namespace, v.launcherPod())
	was, heard := w.containers(w.a, v), w.heartbeat(w.a)
	if err := restart(w.Context()); err != nil && !w.Own() {
		w.Fatalf("NOT RUN on this cluster: needs %s as a service of systemd on the nodes: %v", name, err)
	} else if err != nil {
		w.Fatalf("restart of %s: %v", name, err)
	}
	node.Eventually(w, soon, func() bool { return w.heartbeat(w.a) != heard }, "kubelet does not come back")
	w.step("restart of %s", name)
	if is := w.containers(w.a, v); is != was {
		w.Errorf("restart of %s: the containers are\n%s\nand were\n%s", name, is, was)
	}
}

// containers identifies the containers of a node's agent and of a VM's launcher there.
func (w *world) containers(n *cluster.Node, v *vm) string {
	w.Helper()
	const id = `jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}{"\n"}`
	return w.Kubectl(w, "get", "pod", "-n", agents, w.agent(n), "-o", id) + "\n" + w.Kubectl(w, "get", "-n", namespace, v.launcherPod(), "-o", id)
}

func (w *world) heartbeat(n *cluster.Node) string {
	w.Helper()
	return w.find(objects.Query{Kind: "node", Name: n.Name, Path: `{.status.conditions[?(@.type=="Ready")].lastHeartbeatTime}`})
}
