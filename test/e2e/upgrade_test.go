//go:build nightly

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

const shipped = "../../deploy"

// version applies the agents and cluster-controller of these manifests. It asserts that the
// agents are those of the last release, or that they are not.
func (w *world) version(manifests string) {
	w.Helper()
	if err := w.applyAgentsOf(w.Context(), manifests); err != nil {
		w.Fatal(err)
	}
	w.Kubectl(w, "apply", "-k", filepath.Join(manifests, "controller"))
	w.Kubectl(w, "rollout", "status", "-n", agents, "deploy/cluster-controller", "--timeout=90s")
	images := w.find(objects.Query{Kind: "pod", Namespace: agents, Labels: "app.kubernetes.io/name=node-agent", Path: "{.items[*].spec.containers[0].image}"})
	if former := strings.Count(images, ":previous"); former != 0 && manifests == shipped || former != 2 && manifests != shipped {
		w.Fatalf("the agents are %s", images)
	}
	w.step("agents and controllers: %s", images)
}

// lastRelease imports the images of the last release on both nodes, and returns its manifests.
func (w *world) lastRelease() string {
	w.Helper()
	for _, name := range []string{"node-agent", "cluster-controller"} {
		archive, err := cluster.Previous("product/" + name + ".tar")
		if err != nil {
			w.Fatal(err)
		}
		if err := w.Import(w.Context(), archive); err != nil {
			w.Fatal(err)
		}
	}
	manifests, err := cluster.Previous("deploy")
	if err != nil {
		w.Fatal(err)
	}
	return manifests
}

// fromLastRelease replaces this version by the last release until the test ends, and returns the manifests of that.
func (w *world) fromLastRelease() (previous string) {
	w.Helper()
	previous, from := w.lastRelease(), time.Now()
	w.restore(func(ctx context.Context) error {
		deleted := w.kubectl(ctx, "delete", "-k", controllerDir, "--ignore-not-found")
		_, crds := w.Script(ctx, crdsRun, "apply")
		applied := w.applyAgents(ctx)
		w.unsettled = append(w.unsettled, window{from, time.Now()})
		return errors.Join(deleted, crds, applied)
	})
	if _, err := w.Script(w.Context(), filepath.Join(previous, "crds/run"), "apply"); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(w.controllersSaid)
	w.version(previous)
	return previous
}

// Given the last release with a VM at rest, one in its grace period, and one that leaves its node
// and finds no room. When it is upgraded, and when the last release comes back, then no deadline
// moves, no VM is lost, and the VM leaves once there is room.
func TestAnUpgradeFromTheLastReleaseAndBackMovesNoDeadline(t *testing.T) {
	w := given(t)
	previous := w.fromLastRelease()
	all := w.vms(plan{Spec: deaf(), grace: 50}, plan{Spec: deaf(), grace: 24}, plan{Spec: deaf(), grace: 5}, plan{grace: 30})
	first, second, kept, leaving := all[0], all[1], all[2], all[3]
	w.askToBeMoved(leaving) // the last release's budgets need a right on VMIs' finalizers
	w.afterwards("uncordon", w.b.Name)
	w.Kubectl(t, "cordon", w.b.Name)
	if err := leaving.evict(); err == nil {
		t.Error("a VM that asked to be moved was evicted")
	}
	node.Eventually(t, soon, func() bool { return leaving.vmi("{.status.evacuationNodeName}") == w.a.Name }, "%s is not marked", leaving.Name)
	w.delete(first.launcherPod())
	before := first.begun("LauncherSignal", 50*time.Second)

	if _, err := w.Script(t.Context(), crdsRun, "apply"); err != nil {
		t.Fatal(err)
	}
	w.version(shipped)
	first.kept(before)
	w.untouched(kept, leaving)
	if got := leaving.vmi("{.status.evacuationNodeName}"); got != w.a.Name {
		t.Errorf("the mark is %q", got)
	}
	w.Kubectl(t, "uncordon", w.b.Name)
	node.Eventually(t, 2*soon, func() bool { return strings.Contains(leaving.migrations(), "Succeeded ") }, "it does not leave: %s", leaving.migrations())
	w.step("the VM that the last release marked has left")
	there := leaving.moved(w.b)
	w.delete("vmi/" + second.Name)
	after := second.begun(either, 24*time.Second)

	w.version(previous)
	first.kept(before)
	second.kept(after)
	second.destroyedAt(after.deadline)
	first.destroyedAt(before.deadline)
	first.ended("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
	second.ended(either, "Forced", "ShutdownStarted", "ShutdownForced")
	w.untouched(kept, there)
}

// lastReleasesBudgets is a right that the last release does not give its controller, and needs for budgets where the
// API server protects ownerReferences.
const lastReleasesBudgets = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: last-releases-budgets}
rules: [{apiGroups: [kubevirt.io], resources: [virtualmachineinstances/finalizers, virtualmachineinstancemigrations/finalizers], verbs: [update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: last-releases-budgets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: last-releases-budgets}
subjects: [{kind: ServiceAccount, namespace: ` + agents + `, name: cluster-controller}]
`

// evict evicts the launcher pod once.
func (v *vm) evict() error {
	eviction := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"virt-launcher-%s","namespace":"%s"}}`, v.Name, namespace)
	_, err := v.w.TryKubectl(v.w.Context(), eviction, "create", "--raw", "/api/v1/namespaces/"+namespace+"/pods/virt-launcher-"+v.Name+"/eviction", "-f", "-")
	return err
}

// sent starts a migration of the VM and waits until its guest is being sent, slowly.
func (v *vm) sent(migration string) {
	w := v.w
	w.Helper()
	w.migrationSettings(`{"bandwidthPerMigration":"1Mi"}`)
	w.KubectlApply(w, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: `+migration+`, namespace: `+namespace+`}
spec: {vmiName: `+v.Name+`}
`)
	w.afterwards("delete", "vmim", "-n", namespace, migration, "--ignore-not-found")
	w.Kubectl(w, "wait", "vmim", "-n", namespace, migration, "--for=jsonpath={.status.migrationState.progress.percent}", "--timeout=90s")
	w.step("%s is sent", v.Name)
}

func (w *world) migrationSettings(of string) {
	w.Helper()
	w.Kubectl(w, "patch", "kubevirt", "kubevirt", "-n", agents, "--type=merge", "-p", `{"spec":{"configuration":{"migrations":`+of+`}}}`)
}

// left waits for the end of a migration to the other node, asserts that one guest is left, which was neither booted
// again nor asked, and returns the VM as it is then.
func (v *vm) left(migration string) *vm {
	w := v.w
	w.Helper()
	phase, to := "", w.a
	if v.Node == w.a {
		to = w.b
	}
	node.Eventually(w, 3*time.Minute, func() bool {
		phase = w.get("vmim", migration, "{.status.phase}")
		return phase == "Succeeded" || phase == "Failed"
	}, "the migration does not end: %s", w.get("vmim", migration, "{.status}"))
	w.step("the migration of %s has %s: %s", v.Name, phase, w.get("vmim", migration, "{.status.migrationState.failureReason}"))
	if phase == "Failed" {
		v.runs()
		node.Eventually(w, soon, func() bool { return !strings.Contains(to.Virsh(w, "list", "--all", "--name"), v.Domain) }, "a second guest of %s is on %s", v.Name, to.Name)
		v.waitGuarded()
		return v
	}
	if !v.Gone(w) {
		w.Errorf("QEMU of %s is still on %s", v.Name, v.Node.Name)
	}
	there := v.arrived(to)
	if up := v.boots(there); up != 1 || v.Presses(w) != 0 {
		w.Errorf("%s booted %d times and was asked %d times", v.Name, up, v.Presses(w))
	}
	there.runs()
	there.waitGuarded()
	return there
}

// Given the last release with a VM that is being sent to another node and one whose shutdown is held, because no
// node has room. When it is upgraded, then the hold ends no earlier and no later, and that VM moves once there is
// room. When the other one is sent while the last release comes back, then one guest is left each time.
func TestAnUpgradeInAMoveLosesNoGuestAndMovesNoHold(t *testing.T) {
	w := given(t)
	previous := w.fromLastRelease()
	w.KubectlApply(t, lastReleasesBudgets)
	w.afterwards("delete", "clusterrole,clusterrolebinding", "last-releases-budgets", "--ignore-not-found")
	w.holding("150s")
	held := w.holdable(plan{grace: 30}, "150")
	moving := w.vm(plan{grace: 30})
	w.liveMigratable(moving)
	moving.sent("there")
	w.afterwards("uncordon", w.b.Name)
	w.Kubectl(t, "cordon", w.b.Name)
	held.condition("True", "PreemptionByScheduler")
	w.delete(held.launcherPod())
	latest := held.held("PreemptionByScheduler")

	if _, err := w.Script(t.Context(), crdsRun, "apply"); err != nil {
		t.Fatal(err)
	}
	w.version(shipped)
	if again := held.held("PreemptionByScheduler"); !again.Equal(latest) {
		t.Errorf("the latest moment was %v, it is %v", latest, again)
	}
	w.migrationSettings(`{"bandwidthPerMigration":null}`)
	w.Kubectl(t, "uncordon", w.b.Name)
	node.Eventually(t, 2*time.Minute, func() bool { return strings.Contains(held.migrations(), "Succeeded PreemptionByScheduler") }, "it is not moved: %s", held.migrations())
	there := held.moved(w.b)
	w.step("the VM whose shutdown the last release held has moved")
	moving = moving.left("there")

	moving.sent("back")
	w.version(previous)
	moving.left("back")
	w.untouched(there)
}
