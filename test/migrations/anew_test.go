//go:build !unit

package migrations

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/rig"
)

// Given a migration that has begun and whose agents are silent, and its VMI is deleted and made anew. Then the new VM's
// budget keeps one pod, and its own migration begins.
func TestAFormerVMsMigrationDoesNotHoldUpTheNewOne(t *testing.T) {
	s, m := placed(t)
	s.to(m, kubevirt.MigrationRunning)
	kit.Must(t, s.Delete(t.Context(), s.vmi("vm")))
	kit.Must(t, s.Delete(t.Context(), s.launcher("vm"), client.GracePeriodSeconds(0)))
	kit.Eventually(t, "the VMI is gone", func() bool { return rig.Find[kubevirt.VirtualMachineInstance](s.Space, "vm") == nil })
	s.vm("vm")
	kit.Eventually(t, "the new VM's budget keeps one", func() bool { return s.keeps("vm") == 1 })
	next := s.comes(s.Migrate("next", "vm"), kubevirt.MigrationScheduling)
	s.comesTarget(next)
	if now := s.read(m); now == nil || now.Final() {
		t.Errorf("the former VM's migration has ended without its agents: %+v", now)
	}
	if keeps := s.keeps("vm"); keeps != 2 {
		t.Errorf("during the migration the budget keeps %d", keeps)
	}
}

// Given a launcher pod with what a user may write, and what the API server adds to it when it is made. When its VM
// migrates, then the API server takes the copy, with the same wishes.
func TestATargetPodOfAPodWithEachWishIsMade(t *testing.T) {
	s := given(t)
	v := s.VMI("vm", "node-a", kubevirt.StrategyLiveMigrate)
	s.Make(v, `{"phase":"Running","nodeName":"node-a","conditions":[{"type":"LiveMigratable","status":"True"}]}`)
	p := s.Launcher(v, "node-a")
	p.Labels["app"] = "db"
	selector := func() *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "data"}}
	}
	term := corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: selector(), MatchLabelKeys: []string{"app"}}
	apart := corev1.PodAffinityTerm{TopologyKey: "rack", LabelSelector: selector(), MismatchLabelKeys: []string{"app"}}
	p.Spec.Affinity = &corev1.Affinity{
		PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: *apart.DeepCopy()}}},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{*apart.DeepCopy()},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: *term.DeepCopy()}}},
	}
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
		{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector(), MatchLabelKeys: []string{"app"}},
		{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector()},
	}
	sandbox := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "sandbox"}, Handler: "runc",
		Overhead:   &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"sandbox": "true"}, Tolerations: []corev1.Toleration{{Key: "sandbox", Operator: corev1.TolerationOpExists}}}}
	s.Make(sandbox, "")
	s.Make(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: s.NS, Name: "defaults"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}}}}, "")
	p.Spec.RuntimeClassName = &sandbox.Name
	p.Spec.PriorityClassName = "system-node-critical"
	p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "vm", "vms", new(true)
	p.Spec.Tolerations = []corev1.Toleration{{Key: "mine", Operator: corev1.TolerationOpExists}}
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.org/ready"}}
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"db"}}}
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.2"}}
	p.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
	p.Spec.ShareProcessNamespace, p.Spec.EnableServiceLinks = new(true), new(false)
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(107)), FSGroup: new(int64(107)), SupplementalGroups: []int64{36}}
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}},
		corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	c := &p.Spec.Containers[0]
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	c.Ports = []corev1.ContainerPort{{Name: "vnc", ContainerPort: 5900}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
	c.ReadinessProbe.TCPSocket.Port.IntVal = 5900
	s.Make(p, rig.PodRuns)
	if merged := s.launcher("vm").Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector.MatchExpressions; len(merged) != 1 {
		t.Fatalf("the API server has not merged the labels' keys: %+v", merged)
	}
	controller(t)
	kit.Eventually(t, "its budget", func() bool { return s.keeps("vm") == 1 })
	target := s.comesTarget(s.Migrate("move", "vm"))
	before, after := s.launcher("vm").Spec, target.Spec
	if before.Overhead.Memory().IsZero() || !before.Overhead.Memory().Equal(*after.Overhead.Memory()) || len(after.Tolerations) != len(before.Tolerations) || after.NodeSelector["sandbox"] != "true" ||
		!reflect.DeepEqual(after.Containers[0].Resources, before.Containers[0].Resources) {
		t.Errorf("of the runtime class and the limits: %+v, want %+v", after, before)
	}
	if got, want := after.Affinity.PodAffinity, before.Affinity.PodAffinity; got.String() != want.String() {
		t.Errorf("affinity %v, want %v", got, want)
	}
	if len(after.TopologySpreadConstraints) != 2 || after.TopologySpreadConstraints[0].String() != before.TopologySpreadConstraints[0].String() || after.PriorityClassName != before.PriorityClassName {
		t.Errorf("%+v", after)
	}
}
