package kubevirt

import (
	_ "embed"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// padding is what virt-launcher waits longer than the guest's grace period, and the pod
	// longer than virt-launcher, in seconds.
	padding = 15
	// port is where a migration's target listens, in its pod.
	port = "4444"

	migrationUID  = "kubevirt.io/migrationJobUID"  // label of a migration's target pod
	migrationName = "kubevirt.io/migrationJobName" // annotation of the same
	createdBy     = "kubevirt.io/created-by"
)

//go:embed launcher.sh
var launcher string

// newPod returns the launcher pod of a VMI. Nothing in it needs more than Pod Security's
// level baseline. Its image has no shell, so an init container brings one, as KubeVirt's
// bring their files.
func newPod(v *vmi, image string) *corev1.Pod {
	grace := v.grace()
	volume := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "virt-launcher-" + v.GetName() + "-", Namespace: v.GetNamespace(),
			Labels:      map[string]string{"kubevirt.io": "virt-launcher", createdBy: string(v.GetUID()), "vm.kubevirt.io/name": v.GetName()},
			Annotations: map[string]string{"kubevirt.io/domain": v.GetName()},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v.GetAPIVersion(), Kind: v.GetKind(), Name: v.GetName(), UID: v.GetUID(), Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(grace + 2*padding),
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
			NodeSelector:    v.nodeSelector(),
			SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(107)), RunAsNonRoot: new(true), FSGroup: new(int64(107))},
			InitContainers: []corev1.Container{{
				Name: "container-disk", Image: "local.test/busybox:1", Command: []string{"/bin/cp", "-a", "/bin/.", "/to"},
				VolumeMounts: []corev1.VolumeMount{{Name: "bin", MountPath: "/to"}},
			}},
			Containers: []corev1.Container{compute(v, image, grace)},
			Volumes:    []corev1.Volume{volume("bin"), volume("sockets")},
		},
	}
}

func compute(v *vmi, image string, grace int64) corev1.Container {
	return corev1.Container{
		Name: "compute", Image: image,
		Command: []string{"/bin/sh", "-c", launcher, "virt-launcher-monitor"},
		Args: []string{
			"/usr/bin/qemu-system-x86_64", "-nodefaults", "-no-user-config", "-machine", "q35", "-accel", "tcg,tb-size=64", "-m", "128",
			"-display", "none", "-serial", "stdio", "-qmp", "unix:/sockets/qmp,server=on,wait=off",
			"-kernel", "/guest/vmlinuz", "-initrd", "/guest/initrd", "-append", v.kernelArgs(),
		},
		Env: []corev1.EnvVar{{Name: "GRACE", Value: strconv.FormatInt(grace+padding, 10)}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse(v.cpu()), "memory": resource.MustParse("64Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "bin", MountPath: "/bin"}, {Name: "sockets", MountPath: "/sockets"}},
	}
}

// newTarget returns the pod to which a migration moves a VMI: on another node than every
// other pod of the VMI.
func newTarget(v *vmi, m *migration, image string) *corev1.Pod {
	pod := newPod(v, image)
	pod.Labels[migrationUID] = string(m.GetUID())
	pod.Annotations[migrationName] = m.GetName()
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{createdBy: string(v.GetUID())}},
			TopologyKey:   "kubernetes.io/hostname",
		}},
	}}
	c := &pod.Spec.Containers[0]
	c.Args = append(c.Args, "-incoming", "tcp:0.0.0.0:"+port)
	return pod
}
