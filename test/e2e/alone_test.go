package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// alone is the pod of deploy/examples/vm.yaml with its own QEMU, without its VMI and without libvirt.
type alone struct {
	w              *world
	on             *cluster.Node
	name, manifest string
	grace          int
	uid            string // of the pod
	pid            int    // QEMU's, in this process's PID namespace
}

// alone applies the example on a node, with this name, behaviour and grace period.
func (w *world) alone(on *cluster.Node, name, behaviour string, grace int) *alone {
	w.Helper()
	_, manifest, _ := strings.Cut(w.example("vm.yaml", "name: virt-launcher-vm-example", "name: "+name, "domain: vm-example", "domain: "+name, "namespace: default", "namespace: "+namespace,
		"restartPolicy: Never", "restartPolicy: Never\n  nodeName: "+on.Name, "quiet polite", "quiet "+behaviour,
		"      env:\n", fmt.Sprintf("      env:\n        - {name: VM_GRACE_PERIOD_SECONDS, value: \"%d\"}\n", grace)), "---\n")
	v := &alone{w: w, on: on, name: name, grace: grace, manifest: manifest}
	w.afterwards("delete", "pod", "-n", namespace, name, "--ignore-not-found", "--grace-period=1", "--wait=false")
	w.KubectlApply(w, v.manifest)
	v.uid = w.get("pod", name, "{.metadata.uid}")
	return v
}

// booted waits until the guest has booted: six that are emulated share two cores with the
// cluster.
func (v *alone) booted() {
	v.w.Helper()
	node.Eventually(v.w, 6*soon, func() bool {
		out, err := v.w.TryKubectl(v.w.Context(), "", "logs", "-n", namespace, v.name)
		return err == nil && strings.Contains(out, "vmgrace-guest: up")
	}, "the guest of %s does not boot", v.name)
}

func (v *alone) guarded() {
	v.w.Helper()
	node.Eventually(v.w, 2*soon, func() bool {
		r, ok := v.record()
		return ok && r.Phase == "Running" && r.GracePeriodSeconds == int64(v.grace)
	}, "%s is not guarded", v.name)
	v.pid = v.qemu()
}

func (v *alone) record() (node.VMStatus, bool) {
	v.w.Helper()
	records, _ := v.w.records(v.on)
	for _, r := range records {
		if r.Name == v.name {
			return r, true
		}
	}
	return node.VMStatus{}, false
}

// qemu returns the pid of the QEMU in the pod's cgroup.
func (v *alone) qemu() int {
	v.w.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		v.w.Fatal(err)
	}
	for _, process := range all {
		name, _ := os.ReadFile(filepath.Join(process, "comm")) // the process may be gone
		groups, _ := os.ReadFile(filepath.Join(process, "cgroup"))
		if strings.HasPrefix(string(name), "qemu-") && strings.Contains(string(groups), v.uid) {
			pid, _ := strconv.Atoi(filepath.Base(process)) // the name has only digits
			return pid
		}
	}
	v.w.Fatalf("%s has no QEMU", v.name)
	return 0
}

// monitor makes the VM's QEMU carry out a command.
func (v *alone) monitor(command string) {
	v.w.Helper()
	node.Monitor(v.w, fmt.Sprintf("/proc/%d/root/run/vm/qmp.sock", v.pid), command)
}

// deadline waits until the VM's grace period has begun and returns when it ends.
func (v *alone) deadline() (at time.Time) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool {
		r, ok := v.record()
		if ok && r.Deadline != "" {
			at = node.WallTime(v.w, r.Deadline)
		}
		return !at.IsZero()
	}, "the grace period of %s does not begin", v.name)
	return at
}

// ended waits until the pod is gone and returns how long its shutdown took, as the agent
// logs it.
func (v *alone) ended(outcome string) (took time.Duration) {
	v.w.Helper()
	node.Eventually(v.w, 2*soon, func() bool {
		return v.w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: v.name, Path: "{.metadata.name}"}) == ""
	}, "the pod %s does not go", v.name)
	logs := v.w.Kubectl(v.w, "logs", "-n", agents, v.w.agent(v.on), "--tail=-1")
	for line := range strings.Lines(logs) {
		var said struct{ Msg, Name, Outcome, Cause, Took string }
		if json.Unmarshal([]byte(line), &said) != nil || said.Name != v.name || said.Msg != "stopped" {
			continue
		}
		if said.Outcome != outcome || said.Cause != "LauncherSignal" {
			v.w.Errorf("%s: %s", v.name, line)
		}
		took, err := time.ParseDuration(said.Took)
		if err != nil {
			v.w.Errorf("%s: %v", line, err)
		}
		return took
	}
	v.w.Errorf("the agent has not said that %s stopped:\n%s", v.name, logs)
	return 0
}

func TestAVMByKubectlApplyAloneOnNodesWithoutLibvirt(t *testing.T) {
	// Given nodes without libvirtd, and VMs that one kubectl apply each has created.
	w := given(t)
	for _, n := range w.Nodes {
		if err := n.StopLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out, err := n.TryRun(t.Context(), nil, "virsh -q -c qemu:///system list"); err == nil {
			t.Fatalf("there is a libvirtd still: %s", out)
		}
		w.restore(n.StartLibvirtd)
	}
	signals := node.ListSignals(t)
	polite, byManifest, slow := w.alone(w.a, "polite", "polite", 6), w.alone(w.b, "by-manifest", "polite", 6), w.alone(w.b, "slow", "slow=2", 20)
	paused, deaf, none := w.alone(w.b, "paused", "polite", 6), w.alone(w.a, "deaf", "deaf", 6), w.alone(w.a, "grace-0", "deaf", 0)
	for _, v := range []*alone{polite, byManifest, slow, paused, deaf, none} {
		v.booted()
		v.guarded()
	}
	w.step("six guests are up")

	// When they are deleted, then each guest is asked at once,
	for _, v := range []*alone{polite, byManifest, paused} {
		if v == paused {
			v.monitor("stop")
		}
		if v != byManifest {
			w.delete("pod/" + v.name)
		} else if _, err := w.TryKubectl(t.Context(), v.manifest, "delete", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		took := v.ended("Graceful")
		if took > time.Second {
			t.Errorf("%s is off after %v", v.name, took)
		}
		w.step("%s is off after %v", v.name, took)
	}
	// has the time that it needs, also a guest that still boots,
	booting := w.alone(w.a, "booting", "boot=2", 40)
	booting.guarded()
	for _, v := range []*alone{booting, slow, deaf, none} {
		w.delete("pod/" + v.name)
	}
	deadline := deaf.deadline()
	if took := slow.ended("Graceful"); took < 2*time.Second {
		t.Errorf("a guest that takes 2 s is off after %v", took)
	}
	// and is destroyed when its grace period of 6 s, or of 0 s, is over.
	if took := none.ended("Forced"); took > time.Second {
		t.Errorf("without a grace period it is off after %v", took)
	}
	if took := deaf.ended("Forced"); took < 6*time.Second {
		t.Errorf("a deaf guest with a grace period of 6 s is off after %v", took)
	}
	at, ok := signals.Sent(t, &node.Guest{PID: deaf.pid}, syscall.SIGTERM)
	if late := node.Moment(t, at).Sub(deadline); !ok || late < 0 || late >= 50*ms {
		t.Errorf("a deaf guest is signalled %v after its deadline (signalled: %v)", late, ok)
	} else {
		w.step("the deaf one is signalled %.1f ms after its deadline", late.Seconds()*1000)
	}
	booting.ended("Graceful")
	w.step("they are gone")
	// Then no record is left of them.
	for _, n := range w.Nodes {
		if records, ok := w.records(n); !ok || len(records) != 0 {
			t.Errorf("records of %s: %+v, %v", n.Name, records, ok)
		}
	}
}
