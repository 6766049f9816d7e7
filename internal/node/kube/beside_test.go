package kube

import (
	"encoding/json"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// What KubeVirt's controllers write of a move away from the node n. A migration state stays until
// the next migration.
func TestWhatKubeVirtSaysOfAMove(t *testing.T) {
	s := &Source{node: "n"}
	for status, want := range map[string]besideVMI{
		``:               {},
		`"nodeName":"n"`: {},
		`"nodeName":"n","evacuationNodeName":"n"`:                                                    {marked: true},
		`"nodeName":"n","evacuationNodeName":"m"`:                                                    {},
		`"conditions":[{"type":"EvictionRequested","status":"True"}]`:                                {marked: true},
		`"conditions":[{"type":"EvictionRequested","status":"False"}]`:                               {},
		`"migrationState":{"sourceNode":"n","targetNode":"m","migrationUid":"u"}`:                    {moving: true},
		`"migrationState":{"sourceNode":"n"}`:                                                        {moving: true},
		`"migrationState":{"sourceNode":"n","targetNode":"m","completed":true,"failed":true}`:        {},
		`"migrationState":{"sourceNode":"n","targetNode":"m","failed":true}`:                         {},
		`"migrationState":{"sourceNode":"n","targetNode":"m","endTimestamp":"2026-01-02T03:04:05Z"}`: {},
		`"nodeName":"n","migrationState":{"sourceNode":"n","targetNode":"m","completed":true}`:       {left: true},
		`"nodeName":"m","migrationState":{"sourceNode":"n","targetNode":"m","completed":true}`:       {left: true},
		`"nodeName":"m"`: {left: true},
		`"nodeName":"n","migrationState":{"sourceNode":"m","targetNode":"n","completed":true}`:            {},
		`"nodeName":"n","migrationState":{"sourceNode":"m","targetNode":"n"}`:                             {},
		`"migrationState":{"sourceNode":"n","sourceState":{"pod":"p"},"targetState":{},"targetNode":"m"}`: {moving: true},
	} {
		var is kubevirt.VirtualMachineInstanceStatus
		if err := json.Unmarshal([]byte("{"+status+"}"), &is); err != nil {
			t.Fatal(err)
		}
		if got := s.besideOf(&is); got != want {
			t.Errorf("%s: %+v, want %+v", status, got, want)
		}
	}
}

func TestALauncherOfKubeVirts(t *testing.T) {
	o := &object{Status: json.RawMessage(`{"containerStatuses":[{"name":"compute","containerID":"containerd://1f"},{"name":"volumevm","containerID":"containerd://2f"}]}`)}
	o.Name, o.Annotations = "virt-launcher-vm-x", map[string]string{"vmgrace.io/hold-for": "PreemptionByScheduler"}
	var status podStatus
	if err := json.Unmarshal(o.Status, &status); err != nil {
		t.Fatal(err)
	}
	if is := besidePodOf(o, &status); is != (besidePod{name: "virt-launcher-vm-x", compute: "1f", hook: true}) {
		t.Errorf("%+v", is)
	}
}
