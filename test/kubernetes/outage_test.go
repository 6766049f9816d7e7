package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
)

func TestWithoutAPIServerASignalCountsAndEventsComeLater(t *testing.T) {
	own := cluster.NewAPI(t)
	w := given(t, own)
	vms := []vm{w.guarded(node.Spec{}, "terminationGracePeriodSeconds: 60"), w.inPod(node.Spec{}, "terminationGracePeriodSeconds: 60")}
	own.Stop()
	w.waitWatch(0)
	for _, v := range vms {
		v.SignalShim(t)
		v.WaitGone(t, soon)
		if s := v.Launcher.WaitStopped(t, soon); s.Cause != "LauncherSignal" || s.Outcome != "Graceful" {
			t.Errorf("%+v", s)
		}
		node.Eventually(t, soon, func() bool { _, ok := v.record(); return !ok }, "the record is still there")
	}
	w.startAPI()
	for _, v := range vms {
		v.stopped("LauncherSignal", "Graceful", "ShutdownStarted", "ShutdownCompleted")
	}
	w.waitWatch(1)
}

func TestAnAgentStartedWithoutAPIServerGuardsWhatItKnows(t *testing.T) {
	own := cluster.NewAPI(t)
	w := given(t, own)
	signalled := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 2")
	deleted := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 3")
	kept := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 4")
	inPod := w.inPod(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 5")
	for v, seconds := range map[*vm]int{&signalled: 2, &deleted: 3, &kept: 4, &inPod: 5} {
		v.waitGrace(seconds)
	}
	w.agent.Kill()
	own.Kubectl(t, "delete", "vmi", deleted.Name)
	own.Stop()

	w.agent.Start(t)
	from, fromInPod := signalled.SignalShim(t), inPod.SignalShim(t)
	signalled.WaitTerminated(t, from.Add(2*time.Second), 50*ms)
	inPod.WaitTerminated(t, fromInPod.Add(5*time.Second), 50*ms)
	deleted.untouched()
	kept.untouched()

	w.startAPI()
	deleted.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
	signalled.stopped("LauncherSignal", "Forced", "ShutdownStarted", "ShutdownForced")
	kept.untouched()
}

func TestAnAgentWithoutAKubeconfigKeepsTheDeadline(t *testing.T) {
	for name, content := range map[string]string{"missing": "", "damaged": "{]"} {
		t.Run(name, func(t *testing.T) {
			// Given
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			text, err := os.ReadFile(api.Kubeconfig)
			if err == nil {
				err = os.WriteFile(kubeconfig, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, api, machine.ClusterAgent(t, kubeconfig, here))
			w.installCRDs()
			w.agent.Start(t)
			v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 8")
			v.SignalShim(t)
			deadline := v.WaitBegun(t)
			node.Eventually(t, soon, func() bool { s, ok := v.record(); return ok && s.Deadline == deadline }, "the deadline is not on disk")
			// When
			w.agent.Kill()
			if content == "" {
				err = os.Remove(kubeconfig)
			} else {
				err = os.WriteFile(kubeconfig, []byte(content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			w.agent.Launch(t)
			// Then
			w.agent.WaitSaid(t, "going on because a grace period is under way", 1)
			v.WaitTerminated(t, node.WallTime(t, deadline), 50*ms)
			// And after the grace period it ends, as it does if it starts without one.
			if code, ok := w.agent.Exited(soon); !ok || code != 1 {
				t.Errorf("exit status %d, ended %t", code, ok)
			}
		})
	}
}

func (w world) startAPI() {
	w.Helper()
	if err := w.api.Start(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func TestALostCRDTakesNoVMAlong(t *testing.T) {
	own := cluster.NewAPI(t)
	w := given(t, own)
	var vms []vm
	for range 5 {
		vms = append(vms, w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 1"))
	}
	for _, v := range vms {
		v.waitGrace(1)
	}
	// Three have KubeVirt's finalizer, and so show a deletionTimestamp that nobody set.
	for _, v := range vms[:3] {
		own.Kubectl(t, "patch", "vmi", v.Name, "--type=merge", "-p", `{"metadata":{"finalizers":["foregroundDeleteVirtualMachine"]}}`)
	}
	own.Kubectl(t, "delete", "crd", "virtualmachineinstances.kubevirt.io", "--wait=false")
	node.Never(t, 5*time.Second, func() bool { return vms[0].Gone() || vms[4].Gone() }, "a VM went with its CRD")
	for _, v := range vms {
		v.untouched()
	}
	for _, v := range vms[:3] {
		own.Kubectl(t, "patch", "vmi", v.Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	}
	w.waitWatch(0)
	w.agent.Restart(t)
	for _, v := range vms {
		v.untouched()
	}

	// When the CRD is back, then the absence of the old VMIs is still no deletion.
	w.installCRDs()
	w.waitWatch(1)
	node.Never(t, 5*time.Second, func() bool { return vms[0].Gone() || vms[4].Gone() }, "a VM went when its CRD came back")
	for _, v := range vms {
		v.untouched()
	}
	// And the agent acts on the deletion of a VMI that was created again, and on the signal
	// of a launcher.
	again := vms[1]
	again.UID = w.vmi(again.Name, "terminationGracePeriodSeconds: 2")
	again.waitGrace(2)
	own.Kubectl(t, "delete", "vmi", again.Name)
	node.Eventually(t, soon, again.Gone, "the deletion of a VMI that was made again is not noticed")
	from := vms[2].SignalShim(t)
	vms[2].WaitTerminated(t, from.Add(time.Second), 50*ms)
	vms[3].untouched()
}

// ofNode returns a client with the agent's account. Its token names the node, as the token
// of a pod does.
func ofNode(t *testing.T, own *cluster.API) cluster.Client {
	t.Helper()
	own.KubectlApply(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+here+`"}}`)
	return own.ServiceAccount(t, "vmgrace-system", "node-agent", "--bound-object-kind=Node", "--bound-object-name="+here)
}

func TestWithoutRightsNoVMIsTouched(t *testing.T) {
	own := cluster.NewAPI(t)
	w := newWorld(t, own, nil)
	w.installCRDs()
	own.Kubectl(t, "apply", "-k", "../../deploy/daemonset")
	w.agent = machine.ClusterAgent(t, ofNode(t, own).Kubeconfig, here).Start(t)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 1")
	v.waitGrace(1)
	if w.agent.Said("orbidden") > 0 {
		t.Errorf("the ServiceAccount as shipped lacks a right:\n%s", w.agent.Log())
	}

	own.Kubectl(t, "delete", "clusterrolebinding", "-l", "app.kubernetes.io/name=node-agent")
	// This does not end a running watch. The API server refuses the next one.
	own.Stop()
	w.startAPI()
	w.waitWatch(0)
	own.Kubectl(t, "delete", "vmi", v.Name)
	w.agent.WaitSaid(t, "orbid", 1)
	v.untouched()

	own.Kubectl(t, "apply", "-k", "../../deploy/daemonset")
	v.stopped("VMIDeleted", "Forced", "ShutdownStarted", "ShutdownForced")
}

func TestARestartedVMTheAgentMissedIsNotShutDown(t *testing.T) {
	own := cluster.NewAPI(t)
	w := newWorld(t, own, nil)
	w.installCRDs()
	own.Kubectl(t, "apply", "-k", "../../deploy/daemonset")
	w.agent = machine.ClusterAgent(t, ofNode(t, own).Kubeconfig, here).Start(t)
	v := w.guarded(node.Spec{Firmware: true}, "terminationGracePeriodSeconds: 1")
	v.waitGrace(1)
	own.Kubectl(t, "delete", "clusterrolebinding", "-l", "app.kubernetes.io/name=node-agent")
	own.Stop()
	w.startAPI()
	w.waitWatch(0)

	// Given an agent that sees no VMI while the VM ends and is created again.
	v.SignalShim(t)
	v.WaitGone(t, soon)
	v.Launcher.WaitStopped(t, soon)
	own.Kubectl(t, "delete", "vmi", v.Name)
	own.Kubectl(t, "delete", "pod", "launcher-"+v.Name, "--force", "--grace-period=0")
	uid := w.vmi(v.Name, "terminationGracePeriodSeconds: 600")
	node.Eventually(t, soon, func() bool {
		return !strings.Contains(machine.Virsh(t, "list", "--all", "--name"), v.Domain)
	}, "libvirt keeps the domain")
	again := machine.Boot(t, v.Spec)
	node.Eventually(t, soon, func() bool { s, ok := w.agent.StatusOf(t, again); return ok && s.Phase == "Running" }, "the new one is not guarded")

	own.Kubectl(t, "apply", "-k", "../../deploy/daemonset")
	w.waitWatch(1)
	node.Eventually(t, soon, func() bool {
		s, ok := w.agent.StatusOf(t, again)
		return again.Gone() || ok && s.UID == uid && s.GracePeriodSeconds == 600
	}, "the new one is not guarded as such")
	node.Never(t, 4*time.Second, again.Gone, "a healthy VM was shut down for the one before it")
}
