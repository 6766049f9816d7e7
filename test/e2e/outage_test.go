package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

// server returns the API server. The test fails if it must not be stopped.
func (w *world) server() *cluster.API {
	w.Helper()
	api, err := w.API()
	if err != nil {
		w.Fatalf("NOT RUN on this cluster: needs an API server that may be stopped: %v", err)
	}
	return api
}

// stop stops the API server until the test starts it again or ends.
func (w *world) stop(api *cluster.API) {
	w.Helper()
	api.Stop()
	w.restore(func(ctx context.Context) error {
		if api.Ready(ctx) {
			return nil
		}
		return w.starting(ctx, api)
	})
	w.waitWatch("0", w.a, w.b)
	w.step("API server stopped, the agents know")
}

func (w *world) start(api *cluster.API) {
	w.Helper()
	if err := w.starting(w.Context(), api); err != nil {
		w.Fatal(err)
	}
	w.step("API server started")
}

// starting starts the API server. Until the server is ready, it may refuse what it allows
// later: it answers before it has read the roles.
func (w *world) starting(ctx context.Context, api *cluster.API) error {
	from := time.Now()
	err := api.Start(ctx)
	w.unsettled = append(w.unsettled, window{from, time.Now()})
	return err //nolint:wrapcheck // it says what was tried
}

// container returns the container runtime's ID of a pod's first container.
func (w *world) container(in, pod string) string {
	w.Helper()
	w.waitTold(in, pod)
	var id string
	_, err := fmt.Sscanf(w.Kubectl(w, "get", pod, "-n", in, "-o", "jsonpath={.status.containerStatuses[0].containerID}"), "containerd://%s", &id)
	if err != nil {
		w.Fatalf("container of %s: %v", pod, err)
	}
	return id
}

// waitTold waits until kubelet has told the API server that a pod is ready. The agent
// guards the VM earlier than that, because kubelet looks at its containers only once a
// second.
func (w *world) waitTold(in, pod string) {
	w.Helper()
	w.Kubectl(w, "wait", "-n", in, pod, "--for=condition=Ready", "--timeout="+soon.String())
}

// kill signals a container's first process through containerd, without kubelet.
func (w *world) kill(n *cluster.Node, container, signal string) {
	w.Helper()
	n.Run(w, "ctr -n k8s.io tasks kill -s "+signal+" "+container)
}

func TestWithoutAPIServerALaunchersSignalCountsAndEventsComeLater(t *testing.T) {
	w := given(t)
	api := w.server()
	v := w.vm(plan{grace: 60})
	launcher := w.container(namespace, v.launcherPod())
	w.stop(api)
	w.kill(v.Node, launcher, "SIGTERM")
	v.offByItself()
	node.Eventually(t, soon, func() bool { s := v.launcherStatus(); return s.Phase == "Stopped" && s.Outcome == "Graceful" }, "status.json: %+v", v.launcherStatus())
	w.start(api)
	v.ended("LauncherSignal", "Graceful", "ShutdownStarted", "ShutdownCompleted")
	w.waitWatch("1", w.a, w.b)
}

// five creates five VMs whose launcher pods have no owner. Otherwise the garbage collector
// would delete the pods with the VMIs, which Kubernetes deletes with their CRD.
func (w *world) five() []*vm {
	w.Helper()
	var plans []plan
	for range 5 {
		plans = append(plans, plan{Spec: deaf(), grace: 2, orphan: true})
	}
	return w.vms(plans...)
}

// goOn asserts for 3 s that no VM ends.
func (w *world) goOn(vms []*vm) {
	w.Helper()
	gone := func(v *vm) bool { return v.Gone(w) }
	node.Never(w, 3*time.Second, func() bool { return slices.ContainsFunc(vms, gone) }, "a VM has gone")
	w.untouched(vms...)
	w.step("all go on")
}

func TestALostCRDTakesNoVMAlong(t *testing.T) {
	w := given(t)
	if !w.Own() {
		t.Fatal("NOT RUN on this cluster: needs a CRD that may be deleted with all its VMIs")
	}
	vms, owned := w.five(), w.vm(plan{Spec: deaf(), grace: 2, finalizer: true})
	kept := append(slices.Clone(vms[2:]), owned)
	for _, v := range kept {
		v.finalizers(`["` + finalizer + `"]`)
	}
	w.restore(w.applyCRDs)
	w.Kubectl(t, "delete", crd, "--wait=false")
	for _, v := range kept {
		node.Eventually(t, soon, func() bool { return w.get("vmi", v.Name, "{.metadata.deletionTimestamp}") != "" }, "%s is not marked as deleted", v.Name)
	}
	w.step("CRD being deleted, VMIs with finalizers marked as deleted")
	w.goOn(append(slices.Clone(vms), owned))
	// When a VMI is gone, then the garbage collector deletes the launcher pod that it owns,
	// and kubelet's SIGTERM starts the shutdown.
	owned.release()
	owned.begun("LauncherSignal", 2*time.Second)
	owned.WaitGone(t, soon)
	for _, v := range vms[2:] {
		v.release()
	}
	w.waitWatch("0", w.a, w.b)
	w.step("CRD deleted, the agents know")
	w.goOn(vms)
	w.Kubectl(t, "delete", "pod", "-n", agents, w.agent(w.a))
	w.waitAgents()
	w.step("another agent without the CRD")
	w.goOn(vms)

	if err := w.applyCRDs(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.waitWatch("1", w.a, w.b)
	w.step("CRD restored, the agents know")
	w.goOn(vms)
	// When a launcher pod or a VMI that was created again is deleted, then its VM is shut
	// down.
	w.delete(vms[0].launcherPod())
	vms[0].WaitGone(t, soon)
	again := vms[1]
	again.uid = w.vmi(plan{Spec: again.Spec, on: again.Node, grace: 3})
	node.Eventually(t, soon, func() bool { r, ok := again.record(); return ok && r.GracePeriodSeconds == 3 }, "the VMI that was made again is not seen")
	w.delete("vmi/" + again.Name)
	again.WaitGone(t, soon)
	again.told("ShutdownStarted", "ShutdownForced")
	w.goOn(vms[2:])
}

func TestWithoutRightsNoVMIsTouched(t *testing.T) {
	w := given(t)
	vms := w.five()
	from := time.Now()
	w.restore(w.applyAgents)
	w.Kubectl(t, "delete", "clusterrolebinding", "-l", "app.kubernetes.io/name=node-agent")
	// The API server does not end a running watch for that, but it refuses a new agent's
	// watch.
	w.Kubectl(t, "rollout", "restart", "-n", agents, "ds/node-agent")
	w.waitAgents()
	w.waitWatch("0", w.a, w.b)
	w.step("rights removed, the agents know")
	w.delete("vmi/" + vms[0].Name)
	w.goOn(vms)

	if err := w.applyAgents(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.waitWatch("1", w.a, w.b)
	w.rightless = append(w.rightless, window{from, time.Now()})
	w.step("rights restored, the agents know")
	vms[0].WaitGone(t, soon)
	vms[0].ended("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
	w.goOn(vms[1:])
}
