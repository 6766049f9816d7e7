package migration

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
)

// Given annotations of each network, and others. Then the target pod has those by which a user chooses,
// and none that says what the source pod has got.
func TestWhatTheClusterWroteIsNotCopied(t *testing.T) {
	source := map[string]string{}
	for _, key := range []string{
		"k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status", "k8s.v1.cni.cncf.io/sdf.network-status",
		"k8s.ovn.org/pod-networks", "k8s.ovn.org/dpu.connection-details", "k8s.ovn.org/dpu.connection-status",
		"ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/mac_address", "ovn.kubernetes.io/allocated", "ovn.kubernetes.io/routed",
		"ovn.kubernetes.io/cidr", "ovn.kubernetes.io/gateway", "ovn.kubernetes.io/logical_router", "ovn.kubernetes.io/virtualmachine",
		"attachnet.default.ovn.kubernetes.io/ip_address", "macvlan.default.kubernetes.io/ip_address",
		"cni.projectcalico.org/podIP", "cni.projectcalico.org/podIPs", "cni.projectcalico.org/containerID", "cni.projectcalico.org/podNetns",
		"cni.projectcalico.org/network-status", "cni.projectcalico.org/eth1.network-status",
		"nodeportlocal.antrea.io", "ipam.spidernet.io/assigned-eth0", "ipam.spidernet.io/network-status",
		"vpc.amazonaws.com/pod-eni", "openstack.org/kuryr-vif", "topology.kubernetes.io/zone",
		"kubernetes.io/config.mirror", "openshift.io/scc", "descheduler.alpha.kubernetes.io/eviction-in-progress",
		"kubevirt.io/migrationJobUID",
	} {
		source[key] = "x"
	}
	want := map[string]string{}
	for _, key := range append([]string{
		"example.org/mine", "kubevirt.io/domain", "kubevirt.io/created-by", "app", "ovn.kubernetes.io.example.org/x", "notovn.kubernetes.io/x",
		"descheduler.alpha.kubernetes.io/request-evict-only", "openshift.io/required-scc",
	}, chosen...) {
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

// chosen are annotations by which users choose.
var chosen = []string{
	"ovn.kubernetes.io/logical_switch", "ovn.kubernetes.io/ip_pool", "ovn.kubernetes.io/security_groups", "ovn.kubernetes.io/ingress_rate",
	"attachnet.default.ovn.kubernetes.io/logical_switch",
	"cni.projectcalico.org/ipv4pools", "cni.projectcalico.org/floatingIPs", "cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/hwAddr",
	"qos.projectcalico.org/ingressBandwidth", "k8s.ovn.org/routing-namespaces", "k8s.ovn.org/open-default-ports", "k8s.ovn.org/primary-udn-ipamclaim",
	"k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", "cni.cilium.io/mac-address", "ipam.cilium.io/ip-pool", "io.cilium.no-track-port",
	"ipam.antrea.io/ippools", "ipam.antrea.io/pod-ips", "ipam.spidernet.io/ippool", "ipam.spidernet.io/subnet", "cni.spidernet.io/rdma-resource-inject",
	"kubernetes.io/egress-bandwidth",
}

// Given a pod with annotations that it was made with, and others that were added, by a program or by
// kubectl. Then its copy has none that only a program has added, unless users are known to choose by it.
func TestWhatAProgramAddsIsNotCopied(t *testing.T) {
	entry := func(manager string, applied bool, rest string, keys ...string) Writer {
		return Writer{Manager: manager, Applied: applied, Fields: `{"f:metadata":{"f:annotations":{".":{},"f:` + strings.Join(keys, `":{},"f:`) + `":{}}}` + rest + `}`}
	}
	writers := []Writer{
		entry("new-cni", false, "", append([]string{"new.cni/address", "new.cni/both"}, chosen...)...),
		entry("vm-operator", false, `,"f:spec":{"f:containers":{}}`, "new.cni/choice", "new.cni/both"),
		entry("kubelet", false, `,"f:status":{}`, "new.cni/status"), entry("kubectl-annotate", false, "", "example.org/by-hand"),
		entry("gitops", true, "", "example.org/applied"), {Manager: "nothing"},
	}
	want := []string{"example.org/applied", "example.org/by-hand", "example.org/unknown", "new.cni/both", "new.cni/choice"}
	source := map[string]string{"new.cni/address": "x", "new.cni/status": "x"}
	want = append(want, chosen...)
	for _, key := range want {
		source[key] = "x"
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(CopiedAnnotations(source, writers))); !slices.Equal(got, want) {
		t.Errorf("copied %v\nwant %v", got, want)
	}
}

// Whoever reads docs/migration.md sees the table of networks that is used.
func TestTheDocumentationHasTheTableOfNetworks(t *testing.T) {
	text, err := os.ReadFile("../../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range networks {
		_, row, found := strings.Cut(string(text), "\n| "+n.of+" ")
		row, _, _ = strings.Cut(row, "\n")
		for _, pattern := range strings.Fields(n.reports + " " + n.choices) {
			if _, name, _ := strings.Cut(pattern, "/"); !found || !strings.Contains(row, cmp.Or(name, pattern)) {
				t.Errorf("%s: %s is missing", n.of, pattern)
			}
		}
	}
}

func TestOurAnnotationsAreNotCopied(t *testing.T) {
	source := map[string]string{"vmgrace.io/hold-for": "x", "vmgrace.io/shutdown-reserve-seconds": "1", "vmgrace.io/next-version": "1", "example.org/mine": "1"}
	if got := CopiedAnnotations(source, nil); len(got) != 1 || got["example.org/mine"] != "1" {
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
