package migration

import "strings"

type network struct{ of, reports, choices string }

// networks are the annotations of pods that networks report, such as addresses, and of the others
// those by which a user chooses, whoever wrote them: patterns of path.Match, separated by blanks.
// docs/migration.md has the sources.
var networks = []network{
	{"Calico", "cni.projectcalico.org/podIP cni.projectcalico.org/podIPs cni.projectcalico.org/containerID cni.projectcalico.org/podNetns cni.projectcalico.org/*network-status",
		"cni.projectcalico.org/* qos.projectcalico.org/*"},
	{"Cilium", "", "*.cilium.io/* io.cilium*"},
	{"kube-ovn", "*.kubernetes.io/allocated *.kubernetes.io/routed *.kubernetes.io/ip_address *.kubernetes.io/mac_address *.kubernetes.io/cidr *.kubernetes.io/gateway " +
		"*.kubernetes.io/logical_router *.kubernetes.io/vlan_id *.kubernetes.io/network_type *.kubernetes.io/provider_network *.kubernetes.io/tunnel_key *.kubernetes.io/virtualmachine",
		"ovn.kubernetes.io/* *.ovn.kubernetes.io/*"},
	{"OVN-Kubernetes", "k8s.ovn.org/pod-networks k8s.ovn.org/dpu.connection-*", "k8s.ovn.org/*"},
	{"Multus", "k8s.v1.cni.cncf.io/*network-status k8s.v1.cni.cncf.io/networks-status", "k8s.v1.cni.cncf.io/networks v1.multus-cni.io/*"},
	{"Antrea", "nodeportlocal.antrea.io", "ipam.antrea.io/*"},
	{"Flannel", "", "kubernetes.io/*-bandwidth"},
	{"Spiderpool", "ipam.spidernet.io/assigned* ipam.spidernet.io/network-status", "ipam.spidernet.io/* cni.spidernet.io/*"},
}

// Writer is who has written fields of a pod, as managedFields have it. Applied: by an apply.
type Writer struct {
	Manager string
	Applied bool
	Fields  string // JSON
}

// addedLater reports whether programs have added an annotation to a pod that was made without it, as
// managedFields show. Who made the pod has set its spec, too; kubectl and who applies speak for a user.
func addedLater(key string, writers []Writer) (added bool) {
	for _, by := range writers {
		if strings.Contains(by.Fields, `"f:`+key+`"`) {
			if strings.Contains(by.Fields, `"f:spec"`) || by.Applied || strings.HasPrefix(by.Manager, "kubectl") {
				return false
			}
			added = true
		}
	}
	return added
}
