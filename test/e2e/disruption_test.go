package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// holding enables both feature gates and sets how long a shutdown may be held.
func (w *world) holding(allowance string) {
	w.Helper()
	w.afterwards("delete", "evacuationpolicy/default", "--ignore-not-found")
	w.afterwards("delete", "-n", agents, "kubevirt/kubevirt", "--ignore-not-found")
	w.KubectlApply(w, `
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: `+agents+`}
spec: {configuration: {developerConfiguration: {featureGates: [PreemptionEvictionLiveMigration, NoExecuteTaintEvictionLiveMigration]}}}
`)
	w.KubectlApply(w, `{"apiVersion":"vmgrace.io/v1alpha1","kind":"EvacuationPolicy","metadata":{"name":"default"},"spec":{"migrationAllowance":"`+allowance+`"}}`)
}

// letsHold waits until both replicas' webhooks let a launcher be held for the allowance.
func (w *world) letsHold(allowance string) {
	w.Helper()
	probe := plan{Spec: node.Spec{Name: "probe"}, on: w.a, strategy: "LiveMigrate"}
	w.afterwards("delete", "-n", namespace, "vmi/probe", "--ignore-not-found")
	launcher, inARow := w.launcher(probe, w.vmi(probe)), 0
	node.Eventually(w, 2*soon, func() bool {
		out, err := w.TryKubectl(w.Context(), launcher, "create", "--dry-run=server", "-f", "-",
			"-o", `jsonpath={.metadata.annotations.vmgrace\.io/migration-allowance-seconds}`)
		if inARow++; err != nil || out != allowance {
			inARow = 0
		}
		return inARow == 6 // so both replicas have answered
	}, "the webhook does not let a launcher be held for %s s", allowance)
}

// holdable creates a live-migratable VM whose launcher pod allows its shutdown to be held for the
// allowance.
func (w *world) holdable(p plan, allowance string) *vm {
	w.Helper()
	p.strategy = "LiveMigrate"
	w.letsHold(allowance)
	v := w.vm(p)
	if got := w.get("pod", "virt-launcher-"+v.Name, `{.metadata.annotations.vmgrace\.io/hold-for}`); got != "PreemptionByScheduler,DeletionByTaintManager" {
		w.Fatalf("the launcher pod may be held for %q", got)
	}
	w.liveMigratable(v)
	return v
}

// important creates a pod of higher priority that needs the launcher's room on the node.
func (w *world) important(on *cluster.Node, cpu string) {
	w.Helper()
	w.priorityClass("vmgrace-e2e")
	w.afterwards("delete", "-n", namespace, "pod/virt-launcher-important", "--ignore-not-found", "--grace-period=1")
	text := w.launcher(plan{Spec: node.Spec{Name: "important"}, on: on, cpu: cpu, orphan: true}, "nobody")
	// The pod is no launcher, and the scheduler has to place it.
	text = strings.Replace(text, "nodeName: "+on.Name, "nodeSelector: {kubernetes.io/hostname: "+on.Name+"}", 1)
	text = strings.Replace(text, "kubevirt.io: virt-launcher", "app: important", 1)
	text = strings.Replace(text, "restartPolicy: Never", "restartPolicy: Never\n  priorityClassName: vmgrace-e2e", 1)
	w.KubectlApply(w, text)
}

// priorityClass creates a priority class that is higher than that of most pods.
func (w *world) priorityClass(name string) {
	w.Helper()
	w.afterwards("delete", "priorityclass/"+name, "--ignore-not-found")
	w.KubectlApply(w, `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: `+name+`}
value: 1000
`)
}

func (w *world) importantRuns() {
	w.Helper()
	w.Kubectl(w, "wait", "-n", namespace, "--for=jsonpath={.status.phase}=Running", "pod/virt-launcher-important", "--timeout=60s")
	w.step("the more important pod runs")
}

// held waits until status.json and the record say that the agent holds the shutdown for
// this reason. It returns the moment at which the shutdown begins at the latest.
func (v *vm) held(reason string) time.Time {
	v.w.Helper()
	var s node.Status
	node.Eventually(v.w, soon, func() bool {
		s = v.launcherStatus()
		return s.Phase == "Held" && s.Cause == reason
	}, "status.json of %s does not say that its shutdown is held for %s", v.Name, reason)
	if r, ok := v.record(); !ok || r.Phase != "Held" || r.Cause != reason || r.Deadline != s.Deadline || r.StartedAt != s.StartedAt {
		v.w.Errorf("status.json says %+v, the record %+v", s, r)
	}
	v.w.step("the shutdown is held: %s", reason)
	return v.parse(s.Deadline)
}

func TestAVMWhoseLauncherIsPreemptedOrTaintedAwayIsMoved(t *testing.T) {
	w := given(t)
	w.controller()
	w.holding("150s")
	cpu := w.moreThanHalf()
	v := w.holdable(plan{grace: 30, cpu: cpu}, "150")
	const preempted, tainted = "Succeeded PreemptionByScheduler;", "Succeeded DeletionByTaintManager;"
	// moves waits until the guest was moved to the node. causes are all migrations so far.
	moves := func(from *vm, to *cluster.Node, causes string) *vm {
		t.Helper()
		begin := time.Now()
		node.Eventually(t, 60*time.Second, func() bool { return v.migrations() == causes }, "it is not moved to %s", to.Name)
		w.step("moved after %.1f s", time.Since(begin).Seconds())
		from.podGone(time.Now().Add(soon))
		return from.moved(to)
	}

	// When somebody deletes the launcher as the scheduler does,
	v.condition("True", "PreemptionByScheduler")
	w.delete(v.launcherPod())
	// then the VM is moved.
	there := moves(v, w.b, preempted)

	// When a pod of higher priority needs its room, then the VM is moved back, and the pod
	// runs.
	w.important(w.b, cpu)
	back := moves(there, w.a, preempted+preempted)
	w.importantRuns()

	// When its node is tainted, then the VM is moved once more.
	const taint = "CriticalAddonsOnly"
	w.delete("pod/virt-launcher-important", "--grace-period=1")
	w.afterwards("taint", "node", w.a.Name, taint+"-")
	w.Kubectl(t, "taint", "node", w.a.Name, taint+"=true:NoExecute")
	last := moves(back, w.b, preempted+preempted+tainted)

	// When a user deletes the launcher, then the shutdown begins at once.
	from := time.Now()
	w.delete("pod", "-l", "kubevirt.io/created-by="+last.uid)
	began := last.begun("LauncherSignal", 30*time.Second)
	if after := began.startedAt.Sub(from); after > 2*time.Second {
		t.Errorf("the shutdown begins %v after the deletion", after)
	}
	last.WaitGone(t, soon)
	last.ended("LauncherSignal", "Graceful", "ShutdownCompleted", "ShutdownHeld", "ShutdownHeld", "ShutdownHeld", "ShutdownStarted")
}
