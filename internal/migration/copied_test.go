package migration

import (
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

func TestWhatTheClusterWroteIsNotCopied(t *testing.T) {
	source := map[string]string{}
	for _, key := range []string{
		"k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status", "k8s.ovn.org/pod-networks",
		"ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/allocated", "attachnet.default.ovn.kubernetes.io/ip_address",
		"cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs", "cni.projectcalico.org/containerID",
		"vpc.amazonaws.com/pod-eni", "openstack.org/kuryr-vif", "topology.kubernetes.io/zone",
		"kubernetes.io/config.mirror", "openshift.io/scc", "descheduler.alpha.kubernetes.io/eviction-in-progress",
		"kubevirt.io/migrationJobUID",
	} {
		source[key] = "x"
	}
	want := map[string]string{}
	for _, key := range []string{
		"k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", "cni.projectcalico.org/ipv4pools", "example.org/mine",
		"kubevirt.io/domain", "kubevirt.io/created-by", "app", "ovn.kubernetes.io.example.org/x", "notovn.kubernetes.io/x",
		"descheduler.alpha.kubernetes.io/request-evict-only", "kubernetes.io/egress-bandwidth", "openshift.io/required-scc",
	} {
		source[key], want[key] = "x", "x"
	}
	if got := Copied(source); !maps.Equal(got, want) {
		t.Errorf("copied: %v\nwant %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	for _, k := range runTimeKeys {
		if k.why == "" {
			t.Errorf("%s has no reason", k.key)
		}
	}
}

func TestOurAnnotationsAreNotCopied(t *testing.T) {
	source := map[string]string{"vmgrace.io/hold-for": "x", "vmgrace.io/shutdown-reserve-seconds": "1", "vmgrace.io/next-version": "1", "example.org/mine": "1"}
	if got := CopiedAnnotations(source); len(got) != 1 || got["example.org/mine"] != "1" {
		t.Error(got)
	}
	if got := Copied(map[string]string{"vmgrace.io/drain": "Skip"}); len(got) != 1 {
		t.Errorf("labels are a user's: %v", got)
	}
}

func TestAnAddedSelectorOnlyRestricts(t *testing.T) {
	for name, c := range map[string]struct {
		source, added map[string]string
		former        string
		want          map[string]string
		keys          string
	}{
		"nothing":        {nil, nil, "", map[string]string{}, ""},
		"added":          {map[string]string{"disk": "ssd"}, map[string]string{"zone": "a", "kubernetes.io/hostname": "n"}, "", map[string]string{"disk": "ssd", "zone": "a", "kubernetes.io/hostname": "n"}, "kubernetes.io/hostname,zone"},
		"the VM's stays": {map[string]string{"zone": "a"}, map[string]string{"zone": "b"}, "", map[string]string{"zone": "a"}, ""},
		"one migration's is not the next one's": {map[string]string{"disk": "ssd", "zone": "a", "rack": "1"}, map[string]string{"rack": "2"}, "rack,zone",
			map[string]string{"disk": "ssd", "rack": "2"}, "rack"},
	} {
		selector, keys := Selector(c.source, c.added, c.former)
		if !maps.Equal(selector, c.want) || keys != c.keys {
			t.Errorf("%s: %v (%s), want %v (%s)", name, selector, keys, c.want, c.keys)
		}
	}
}

func TestTheNextTargetAvoidsTheLastTwoFailures(t *testing.T) {
	ended := func(node string, phase kubevirt.MigrationPhase, second int, vmi string) kubevirt.VirtualMachineInstanceMigration {
		m := kubevirt.VirtualMachineInstanceMigration{}
		m.Status.Phase = phase
		m.Status.PhaseTransitionTimestamps = []kubevirt.MigrationPhaseTransition{{Phase: phase, Timestamp: metav1.NewTime(noon.Add(time.Duration(second) * time.Second))}}
		m.Status.MigrationState = &kubevirt.MigrationState{TargetNode: node, VMIUID: vmi}
		return m
	}
	// of reports why a migration from node a has failed, in the words of the controller.
	of := func(phase kubevirt.MigrationPhase, m kubevirt.VirtualMachineInstanceMigration) kubevirt.VirtualMachineInstanceMigration {
		m.Status.MigrationState.SourceNode = "a"
		asked := m
		asked.Status.Phase = phase
		m.Status.MigrationState.FailureReason = Facts{Migration: &asked}.agentTimeout()
		return m
	}
	const failed, succeeded = kubevirt.MigrationFailed, kubevirt.MigrationSucceeded
	for name, c := range map[string]struct {
		all  []kubevirt.VirtualMachineInstanceMigration
		want []string
	}{
		"none":         {nil, nil},
		"one":          {[]kubevirt.VirtualMachineInstanceMigration{ended("b", failed, 1, "u")}, []string{"b"}},
		"the last two": {[]kubevirt.VirtualMachineInstanceMigration{ended("d", failed, 3, "u"), ended("b", failed, 1, "u"), ended("c", failed, 2, "u")}, []string{"d", "c"}},
		"one twice":    {[]kubevirt.VirtualMachineInstanceMigration{ended("b", failed, 1, "u"), ended("c", failed, 2, "u"), ended("c", failed, 3, "u")}, []string{"c", "b"}},
		"without a node": {[]kubevirt.VirtualMachineInstanceMigration{ended("b", failed, 1, "u"), ended("", failed, 2, "u")},
			[]string{"b"}},
		"before a success": {[]kubevirt.VirtualMachineInstanceMigration{ended("b", failed, 1, "u"), ended("c", succeeded, 2, "u"), ended("d", failed, 3, "u")}, []string{"d"}},
		"of a former VMI":  {[]kubevirt.VirtualMachineInstanceMigration{ended("b", failed, 1, "old")}, nil},
		"of a silent source": {[]kubevirt.VirtualMachineInstanceMigration{
			ended("b", failed, 1, "u"), of(kubevirt.MigrationTargetReady, ended("c", failed, 2, "u")), of(kubevirt.MigrationPreparingTarget, ended("d", failed, 3, "u")),
		}, []string{"d", "b"}},
		"unfinished": {[]kubevirt.VirtualMachineInstanceMigration{ended("b", kubevirt.MigrationRunning, 1, "u")}, nil},
	} {
		if got := Avoided(c.all, "u"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
