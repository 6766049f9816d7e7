package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// alone is a VM of deploy/examples/vm.yaml.
type alone struct {
	w        *world
	name     string
	manifest string
}

// alone applies the example with another name and behaviour, on a node.
func (w *world) alone(name, behaviour string) *alone {
	w.Helper()
	v := &alone{w: w, name: name, manifest: w.example("vm.yaml", "name: vm-example", "name: "+name, "namespace: default", "namespace: "+namespace,
		"restartPolicy: Never", "restartPolicy: Never\n  nodeName: "+w.a.Name, "quiet polite", "quiet "+behaviour,
		`value: "20"`, `value: "6"`)}
	w.afterwards("delete", "pod", "-n", namespace, name, "--ignore-not-found", "--grace-period=1", "--wait=false")
	w.KubectlApply(w, v.manifest)
	return v
}

func (v *alone) booted() {
	v.w.Helper()
	node.Eventually(v.w, 2*soon, func() bool {
		out, err := v.w.TryKubectl(v.w.Context(), "", "logs", "-n", namespace, v.name)
		return err == nil && strings.Contains(out, "vmgrace-guest: up")
	}, "the guest of %s does not boot", v.name)
	node.Eventually(v.w, soon, func() bool {
		records, _ := v.w.records(v.w.a)
		for _, r := range records {
			if r.Name == v.name {
				return r.Phase == "Running" && r.GracePeriodSeconds == 6
			}
		}
		return false
	}, "%s is not guarded", v.name)
}

// ended waits until the pod is gone, and tells what the agent has said of the end.
func (v *alone) ended(outcome string) (took time.Duration) {
	v.w.Helper()
	node.Eventually(v.w, soon, func() bool {
		return v.w.find(objects.Query{Kind: "pod", Namespace: namespace, Name: v.name, Path: "{.metadata.name}"}) == ""
	}, "the pod %s does not go", v.name)
	logs := v.w.Kubectl(v.w, "logs", "-n", agents, v.w.agent(v.w.a), "--tail=-1")
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

func TestAVMByKubectlApplyAloneOnANodeWithoutLibvirt(t *testing.T) {
	// Given: a node without libvirtd, and VMs that one command has made.
	w := given(t)
	if err := w.a.StopLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := w.a.TryRun(t.Context(), nil, "virsh -q -c qemu:///system list"); err == nil {
		t.Fatalf("there is a libvirtd still: %s", out)
	}
	w.restore(w.a.StartLibvirtd)
	polite, alsoPolite, isDeaf := w.alone("polite", "polite"), w.alone("by-manifest", "polite"), w.alone("deaf", "deaf")
	for _, v := range []*alone{polite, alsoPolite, isDeaf} {
		v.booted()
	}
	w.step("three guests are up")
	// When they are deleted, then they hear of it at once,
	w.delete("pod/" + polite.name)
	const atOnce = 2 * time.Second // an emulated guest, three on two cores
	byName := polite.ended("Graceful")
	if _, err := w.TryKubectl(t.Context(), alsoPolite.manifest, "delete", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	byManifest := alsoPolite.ended("Graceful")
	if byName > atOnce || byManifest > atOnce {
		t.Errorf("off after %v and %v", byName, byManifest)
	}
	// and have their grace period: 6 s.
	w.delete("pod/" + isDeaf.name)
	took := isDeaf.ended("Forced")
	if took < 6*time.Second || took > 6*time.Second+500*ms {
		t.Errorf("a deaf guest with a grace period of 6 s is off after %v", took)
	}
	w.step("they are gone: off after %v and %v, the deaf one after %v", byName, byManifest, took)
	// And nothing is left of them.
	records, ok := w.records(w.a)
	if !ok || len(records) != 0 {
		t.Errorf("records: %+v, %v", records, ok)
	}
}
