//go:build !unit

package migrations

import (
	"strings"
	"testing"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

func TestAnAgentsWordIsSaidOnceUnderEitherName(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationRunning)
	// Given an agent of v0.1 that has reported that the guest still runs there.
	write := func(text string) error {
		return shared.agents["node-a"].Status().Patch(t.Context(), s.read(m), rig.Merge("%s", text))
	}
	kit.Must(t, write(`{"status":{"migrationState":{"sourceState":"Running"}}}`))
	if is := s.read(m).Status.MigrationState.SourceState; is != kubevirt.SourceRunning {
		t.Errorf("it is read as %q", is)
	}
	for _, text := range []string{
		`{"status":{"migrationState":{"vmgraceSourceState":"Gone"}}}`, `{"status":{"migrationState":{"sourceState":"Gone"}}}`,
		`{"status":{"migrationState":{"sourceState":null}}}`, `{"status":{"migrationState":{"vmgraceTargetState":"Running"}}}`,
	} {
		if err := write(text); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: %v", text, err)
		}
	}
	kit.Must(t, write(`{"status":{"migrationState":{"vmgraceSourceState":"Running"}}}`))
}

// keep asserts that an object still has these values of others, by jsonpath.
func (s scene) keep(kind, name string, want map[string]string) {
	s.Helper()
	for path, value := range want {
		if has := shared.Kubectl(s.T, "get", kind, "-n", s.NS, name, "-o", "jsonpath={"+path+"}"); !strings.Contains(has, value) {
			s.Errorf("%s %s: %s is %q, want %q", kind, name, path, has, value)
		}
	}
}

// Given labels, annotations, finalizers and conditions of other programs on a VM's objects.
// When the VM moves in a drain, then they stay. Otherwise other programs would lose what
// they wrote.
func TestAMoveKeepsWhatOthersWrote(t *testing.T) {
	s := given(t)
	v := s.vm("vm")
	others := `{"metadata":{"annotations":{"meta.helm.sh/release-name":"mine"},"labels":{"of.the/owner":"kept"},"finalizers":["example.org/keeps"]}}`
	paths := map[string]string{`.metadata.annotations.meta\.helm\.sh/release-name`: "mine", `.metadata.labels.of\.the/owner`: "kept", `.metadata.finalizers`: "example.org/keeps"}
	budget := "kubevirt-disruption-budget-" + string(v.UID)
	controller(t)
	kit.Eventually(t, "its budget", func() bool { return s.keeps("vm") == 1 })
	for _, o := range [][]string{{"vmi", "vm"}, {"pod", "virt-launcher-vm"}, {"pdb", budget}} {
		shared.Kubectl(t, "patch", o[0], "-n", s.NS, o[1], "--type=merge", "-p", others)
		unkept := []string{"patch", o[0], "-n", s.NS, o[1], "--type=merge", "-p", `{"metadata":{"finalizers":null}}`}
		t.Cleanup(func() { _, _ = shared.TryKubectl(rig.After(t), "", unkept...) })
	}
	s.SetStatus(v, `{"conditions":[{"type":"Ready","status":"True","message":"others"},{"type":"LiveMigratable","status":"True","of":"others"}]}`)
	// When the VM is marked as the webhook marks it on a cordoned node, and moves,
	s.Change(v, `{"metadata":{"annotations":{"vmgrace.io/cordoned":"true","vmgrace.io/evacuation-cause":"Eviction"}}}`)
	shared.Kubectl(t, "cordon", "node-a")
	defer shared.Kubectl(t, "uncordon", "node-a")
	s.SetStatus(v, `{"evacuationNodeName":"node-a"}`)
	kit.Eventually(t, "its migration", func() bool { return len(s.Migrations()) > 0 })
	m := &s.Migrations()[0]
	shared.Kubectl(t, "patch", "vmim", "-n", s.NS, m.Name, "--type=merge", "-p",
		`{"metadata":{"annotations":{"meta.helm.sh/release-name":"mine"},"labels":{"of.the/owner":"kept"}}}`)
	s.scheduled(m, "node-b")
	s.to(m, kubevirt.MigrationRunning)
	s.says("node-b", kubevirt.TargetArrived, m)
	s.says("node-a", kubevirt.SourceGone, m)
	s.says("node-b", kubevirt.TargetRunning, m)
	s.comes(m, kubevirt.MigrationSucceeded)
	s.letGo(m)
	// then vmgrace's annotations of the mark go, and the rest stays.
	kit.Eventually(t, "the mark's annotations and condition go", func() bool {
		now := s.vmi("vm")
		return now.Annotations["vmgrace.io/cordoned"] == "" && now.Annotations["vmgrace.io/evacuation-cause"] == "" && now.Condition(kubevirt.EvictionRequested) == nil
	})
	s.keep("vmi", "vm", paths)
	s.keep("vmi", "vm", map[string]string{`.status.conditions[?(@.type=="Ready")].message`: "others", `.status.conditions[?(@.type=="LiveMigratable")].of`: "others", ".status.unknown": "kept"})
	s.keep("pod", "virt-launcher-vm", paths)
	s.keep("pdb", budget, paths)
	delete(paths, ".metadata.finalizers")
	s.keep("vmim", m.Name, paths)
	// When the budget is edited by hand, then the controller restores only its spec.
	shared.Kubectl(t, "patch", "pdb", "-n", s.NS, budget, "--type=merge", "-p",
		`{"spec":{"minAvailable":null,"maxUnavailable":1,"unhealthyPodEvictionPolicy":"AlwaysAllow","selector":{"matchLabels":{"a":"b"}}}}`)
	kit.Eventually(t, "it is put right", func() bool {
		return shared.Kubectl(t, "get", "pdb", "-n", s.NS, budget, "-o", "jsonpath={.spec}") ==
			`{"minAvailable":2,"selector":{"matchLabels":{"kubevirt.io/created-by":"`+string(v.UID)+`"}}}`
	})
	paths[".metadata.finalizers"] = "example.org/keeps"
	s.keep("pdb", budget, paths)
}
