package migration

import (
	"maps"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/rules/evacuation"
	"github.com/vmgrace/vmgrace/internal/rules/migration"
)

func aMove() wanted {
	grace, strategy := int64(100), kubevirt.StrategyLiveMigrate
	vmi := &kubevirt.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "vm", UID: "u"}}
	vmi.Spec.TerminationGracePeriodSeconds, vmi.Spec.EvictionStrategy = &grace, &strategy
	set := evacuation.Defaults()
	set.LauncherPadding, set.MigrationAllowance = 30*time.Second, 150*time.Second
	return wanted{migration: &object{ObjectMeta: metav1.ObjectMeta{Namespace: "n", UID: "m"}}, vmi: vmi, settings: set}
}

// The webhook may be down. The target pod still has the whole grace period, and its hold
// follows the present settings, not its source's.
func TestGraceAndHoldOfATargetPodAreComputed(t *testing.T) {
	source := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		evacuation.HoldForAnnotation: "x", evacuation.ReserveAnnotation: "1", evacuation.AllowanceAnnotation: "1", evacuation.PaddingAnnotation: "1",
		"of.the/owner": "kept",
	}}}
	w := aMove()
	p := targetPod(w, source)
	if *p.Spec.TerminationGracePeriodSeconds != 130 || len(p.Annotations) != 2 || p.Annotations["of.the/owner"] != "kept" {
		t.Errorf("gates off: grace %d, annotations %v", *p.Spec.TerminationGracePeriodSeconds, p.Annotations)
	}
	w.settings.FeatureGates = []string{evacuation.GatePreemption}
	p = targetPod(w, source)
	want := map[string]string{
		"vmgrace.io/hold-for": "PreemptionByScheduler", "vmgrace.io/shutdown-reserve-seconds": "130",
		"vmgrace.io/migration-allowance-seconds": "150", "vmgrace.io/launcher-padding-seconds": "30", "vmgrace.io/incoming": "m", "of.the/owner": "kept",
	}
	if *p.Spec.TerminationGracePeriodSeconds != 280 || !maps.Equal(p.Annotations, want) {
		t.Errorf("gate on: grace %d, annotations %v", *p.Spec.TerminationGracePeriodSeconds, p.Annotations)
	}
}

// What a user writes is copied; what the cluster has set is not.
func TestATargetPodIsWhatAUserWrites(t *testing.T) {
	projected := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}
	written := corev1.PodSpec{
		Hostname: "vm", ServiceAccountName: "sa", PriorityClassName: "high", RuntimeClassName: new("kata"),
		NodeSelector: map[string]string{"disk": "ssd"},
		Tolerations:  []corev1.Toleration{{Key: "mine"}, {Key: corev1.TaintNodeNotReady, TolerationSeconds: new(int64(300))}},
		Volumes:      []corev1.Volume{{Name: "vmgrace"}, {Name: "kube-api-access-mine"}},
		Containers:   []corev1.Container{{Name: "launcher", VolumeMounts: []corev1.VolumeMount{{Name: "vmgrace"}}}, {Name: "logs"}},
	}
	source := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "source", UID: "s", ResourceVersion: "7", Finalizers: []string{"someone/else"},
		Labels:        map[string]string{kubevirt.CreatedByLabel: "u", "topology.kubernetes.io/zone": "a", kubevirt.MigrationJobLabel: "former"},
		Annotations:   map[string]string{"k8s.v1.cni.cncf.io/networks": "lan", "k8s.v1.cni.cncf.io/network-status": "[]", "example.org/mine": "1", "ovn.kubernetes.io/logical_switch": "vm-subnet", "new.cni/address": "x"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "new-cni", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:new.cni/address":{}}}}`)}},
		OwnerReferences: []metav1.OwnerReference{
			{Kind: "VirtualMachineInstance", Name: "vm", UID: "u", Controller: new(true), BlockOwnerDeletion: new(true)},
		},
	}, Spec: *written.DeepCopy()}
	s := &source.Spec
	s.NodeName, s.Priority, s.PreemptionPolicy = "a", new(int32(1)), new(corev1.PreemptNever)
	s.Overhead = corev1.ResourceList{"cpu": {}}
	s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	s.EphemeralContainers = []corev1.EphemeralContainer{{}}
	s.Volumes = append(s.Volumes, corev1.Volume{Name: "kube-api-access-x7xq2", VolumeSource: projected})
	for i := range s.Containers {
		s.Containers[i].VolumeMounts = append(s.Containers[i].VolumeMounts, corev1.VolumeMount{Name: "kube-api-access-x7xq2"})
	}
	before := source.DeepCopy()

	p := targetPod(aMove(), source)
	p.Spec.Affinity, p.Spec.TerminationGracePeriodSeconds = nil, nil // tested elsewhere
	p.Spec.Containers[1].VolumeMounts = nil                          // empty counts as nil
	p.Spec.Containers[0].Env = nil
	if !reflect.DeepEqual(p.Spec, written) {
		t.Errorf("spec %+v\nwant %+v", p.Spec, written)
	}
	if want := map[string]string{"k8s.v1.cni.cncf.io/networks": "lan", "example.org/mine": "1", "ovn.kubernetes.io/logical_switch": "vm-subnet", "vmgrace.io/incoming": "m"}; !maps.Equal(p.Annotations, want) {
		t.Errorf("annotations %v", p.Annotations)
	}
	if want := map[string]string{kubevirt.CreatedByLabel: "u", kubevirt.MigrationJobLabel: "m"}; !maps.Equal(p.Labels, want) {
		t.Errorf("labels %v", p.Labels)
	}
	owner := p.OwnerReferences
	if len(owner) != 1 || owner[0].UID != "u" || owner[0].Controller == nil || owner[0].BlockOwnerDeletion != nil || p.Finalizers != nil || p.ResourceVersion != "" || p.UID != "" {
		t.Errorf("metadata %+v", p.ObjectMeta)
	}
	if !reflect.DeepEqual(source, before) {
		t.Error("the source pod was changed")
	}
}

// Given a source pod that a former migration has made. Then each container of its copy that
// sees the launcher directory has the present migration's UID once, and the others have none.
func TestATargetsLauncherKnowsWhichMigrationsGuestComes(t *testing.T) {
	directory := []corev1.VolumeMount{{Name: "vmgrace", MountPath: "/var/run/vmgrace/launcher"}}
	former := corev1.EnvVar{Name: "VMGRACE_INCOMING", Value: "former"}
	mine := corev1.EnvVar{Name: "MINE", Value: "1"}
	source := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"vmgrace.io/incoming": "former"}},
		Spec: corev1.PodSpec{
			Containers:     []corev1.Container{{Name: "launcher", VolumeMounts: directory, Env: []corev1.EnvVar{former, mine}}, {Name: "logs", Env: []corev1.EnvVar{mine, former}}},
			InitContainers: []corev1.Container{{Name: "sidecar", VolumeMounts: directory}},
		},
	}
	before := source.DeepCopy()
	p := targetPod(aMove(), source)
	now := corev1.EnvVar{Name: "VMGRACE_INCOMING", Value: "m"}
	for name, c := range map[string]struct{ got, want []corev1.EnvVar }{
		"launcher": {p.Spec.Containers[0].Env, []corev1.EnvVar{mine, now}},
		"logs":     {p.Spec.Containers[1].Env, []corev1.EnvVar{mine}},
		"sidecar":  {p.Spec.InitContainers[0].Env, []corev1.EnvVar{now}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if p.Annotations["vmgrace.io/incoming"] != "m" || !reflect.DeepEqual(source, before) {
		t.Errorf("annotations %v, or the source pod was changed", p.Annotations)
	}
}

func TestATargetPodBelongsToItsVMI(t *testing.T) {
	p := targetPod(aMove(), &corev1.Pod{})
	if len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != "u" || p.OwnerReferences[0].Kind != "VirtualMachineInstance" {
		t.Errorf("%+v", p.OwnerReferences)
	}
}

// A migration's selector and avoided nodes do not apply to the next one, whose source is the
// target of this one.
func TestWhatAMigrationAddsIsNotTheNextOnes(t *testing.T) {
	first := aMove()
	first.migration.Spec.AddedNodeSelector, first.avoid = map[string]string{"zone": "b", "disk": "hdd"}, []string{"x", "y"}
	mine := corev1.PreferredSchedulingTerm{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack"}}}}
	source := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}, Affinity: &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{mine}}}}}
	p := targetPod(first, source)
	if !maps.Equal(p.Spec.NodeSelector, map[string]string{"disk": "ssd", "zone": "b"}) {
		t.Errorf("selector %v", p.Spec.NodeSelector)
	}
	terms := p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 4 || terms[2].Weight != 100 || terms[2].Preference.MatchFields[0].Values[0] != "x" || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Errorf("preferred %+v", terms)
	}

	next := targetPod(aMove(), p)
	if !maps.Equal(next.Spec.NodeSelector, map[string]string{"disk": "ssd"}) || next.Annotations[migration.AddedSelectorAnnotation] != "" {
		t.Errorf("selector %v, annotations %v", next.Spec.NodeSelector, next.Annotations)
	}
	if terms := next.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; !reflect.DeepEqual(terms, []corev1.PreferredSchedulingTerm{mine, takers()}) {
		t.Errorf("preferred %+v", terms)
	}
	if anti := next.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution; len(anti) != 1 {
		t.Errorf("anti-affinity %+v", anti)
	}
}

// takers is the preference for nodes whose agent takes migrations.
func takers() corev1.PreferredSchedulingTerm {
	return corev1.PreferredSchedulingTerm{Weight: 50, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "vmgrace.io/takes-migrations", Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}}}}}
}

// Given a source pod without affinity, one that a user has given the same preference, and
// the copy of a copy. Then each target prefers nodes that take migrations once.
func TestATargetPrefersNodesThatTakeMigrationsOnce(t *testing.T) {
	users := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{takers()}}}}}
	for name, source := range map[string]*corev1.Pod{
		"no affinity": {}, "the user's": users, "a copy": targetPod(aMove(), &corev1.Pod{}), "a copy of a copy": targetPod(aMove(), targetPod(aMove(), &corev1.Pod{})),
	} {
		terms := targetPod(aMove(), source).Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		if !reflect.DeepEqual(terms, []corev1.PreferredSchedulingTerm{takers()}) {
			t.Errorf("%s: %+v", name, terms)
		}
	}
}

// A node without the label is preferred to one with it at which a migration has failed.
func TestAnAvoidedNodesLabelDoesNotMakeUpForIt(t *testing.T) {
	w := aMove()
	w.avoid = []string{"x"}
	for _, term := range targetPod(w, &corev1.Pod{}).Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		if avoids := len(term.Preference.MatchFields) > 0; avoids != (term.Weight > takers().Weight) {
			t.Errorf("%+v", term)
		}
	}
}
