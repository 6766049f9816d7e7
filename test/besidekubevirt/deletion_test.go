package besidekubevirt

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// answered is how long the hook of a launcher may take where an agent answers that nobody
// moves the VM: half of what it waits where none does, on a busy machine.
const answered = time.Second

// deleted deletes the launcher and returns how long it takes until the guest is asked.
func (v *vm) deleted() time.Duration {
	v.w.Helper()
	begin := time.Now()
	v.w.Kubectl(v.w, "delete", "pod", "-n", namespace, v.pod, "--wait=false")
	after := v.pressed().Sub(begin)
	v.gone(v.pod)
	v.w.step("the guest of %s is asked %v after the deletion", v.name, after.Round(10*time.Millisecond))
	return after
}

// Given a launcher that may be held, and another one without the hook. When somebody deletes
// them, then both guests are asked at the same time. When there is no agent on the node, then
// the hook goes on by itself after 2 s.
func TestAPlainDeletionIsAsQuickAsWithoutVmgrace(t *testing.T) {
	w := given(t)
	w.unheld()
	plain := w.vms(w.a, plan{name: "plain", behaviour: "polite", grace: 30})[0]
	if got := plain.launcher("{.spec.volumes[*].name}{.spec.containers[0].lifecycle}{.spec.terminationGracePeriodSeconds}"); got != "bin sockets60" {
		t.Errorf("without cluster-controller the launcher is not as KubeVirt made it: %s", got)
	}
	w.controllers(2)
	w.holdable()
	held := w.vms(w.a, plan{name: "held", behaviour: "polite", grace: 30}, plan{name: "no-agent", behaviour: "polite", grace: 30})
	without := plain.deleted()
	with := held[0].deleted()
	if with > without+answered {
		t.Errorf("the guest is asked after %v with the hook, and after %v without", with, without)
	}

	w.noAgents()
	if after := held[1].deleted(); after < 2*time.Second || after > without+2*time.Second+answered {
		t.Errorf("without an agent the guest is asked after %v", after)
	}
}

func (v *vm) launcher(path string) string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "pod", Name: v.pod, Path: path})
}

// controllers scales cluster-controller and waits for its pods.
func (w *world) controllers(replicas int) {
	w.Helper()
	if err := w.scale(w.Context(), replicas); err != nil {
		w.Fatal(err)
	}
}

func (w *world) scale(ctx context.Context, replicas int) error {
	_, err := w.TryKubectl(ctx, "", "scale", "-n", ours, "deploy/cluster-controller", "--replicas="+strconv.Itoa(replicas))
	if err != nil || replicas > 0 {
		return errors.Join(err, w.ready(ctx, ours, "deploy/cluster-controller"))
	}
	_, err = w.TryKubectl(ctx, "", "wait", "pod", "-n", ours, "-l", "app.kubernetes.io/name=cluster-controller", "--for=delete", "--timeout=60s")
	return err
}

// unheld takes cluster-controller away until the test ends or brings it back.
func (w *world) unheld() {
	w.Helper()
	w.restore(func(ctx context.Context) error { return w.scale(ctx, 2) })
	w.controllers(0)
}

// holdable waits until both replicas know the settings and answer for new launchers.
func (w *world) holdable() {
	w.Helper()
	w.afterwards("delete", "vmi", "-n", namespace, "probe", "--ignore-not-found")
	w.KubectlApply(w, w.vmi(plan{name: "probe", behaviour: "polite", grace: 1}))
	text := w.Kubectl(w, "get", "vmi", "-n", namespace, "probe", "-o", "jsonpath={.metadata.uid}")
	inARow := 0
	node.Eventually(w, soon, func() bool {
		out, err := w.TryKubectl(w.Context(), probe(text), "create", "--dry-run=server", "-f", "-", "-o", `jsonpath={.metadata.annotations.vmgrace\.io/hold-for}`)
		if inARow++; err != nil || out == "" {
			inARow = 0
		}
		return inARow == 6 // so both replicas have answered
	}, "the webhook does not let launchers be held")
	w.Kubectl(w, "delete", "vmi", "-n", namespace, "probe", "--wait=false")
	w.step("launchers can be held")
}

// probe is a launcher pod of the VMI with this UID.
func probe(uid string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"virt-launcher-probe","namespace":"` + namespace + `",
		"labels":{"kubevirt.io":"virt-launcher","kubevirt.io/created-by":"` + uid + `"},"annotations":{"kubevirt.io/domain":"probe"},
		"ownerReferences":[{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","name":"probe","uid":"` + uid + `","controller":true}]},
		"spec":{"containers":[{"name":"compute","image":"local.test/busybox:1"}]}}`
}

// noAgents takes the agents away until the test ends.
func (w *world) noAgents() {
	w.Helper()
	agents := []string{"patch", "-n", ours, "ds/node-agent", "--type=merge", "-p"}
	w.restore(func(ctx context.Context) error {
		if _, err := w.TryKubectl(ctx, "", append(agents, `{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":null}}}}}`)...); err != nil {
			return err
		}
		return w.ready(ctx, ours, "ds/node-agent")
	})
	w.Kubectl(w, append(agents, `{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":"true"}}}}}`)...)
	w.Kubectl(w, "wait", "pod", "-n", ours, "-l", "app.kubernetes.io/name=node-agent", "--for=delete", "--timeout=60s")
	w.step("there are no agents")
}
