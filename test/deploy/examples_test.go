package deploy

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/vmgrace/vmgrace/api/kubevirt"
	"github.com/vmgrace/vmgrace/internal/shim"
)

// example applies the example as a user does, in a namespace at the
// pod-security level "restricted", and returns its VMI's UID and its pod.
func example(t *testing.T) (uid string, pod corev1.Pod) {
	t.Helper()
	installCRDs(t)
	api.Kubectl(t, "label", "--overwrite", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
	if _, err := api.Script(t.Context(), root+"deploy/examples/run", "node-a"); err != nil {
		t.Fatal(err)
	}
	text := api.Kubectl(t, "get", "pod", "virt-launcher-example", "-o", "yaml")
	if err := yaml.Unmarshal([]byte(text), &pod); err != nil {
		t.Fatal(err)
	}
	return api.Kubectl(t, "get", "vmi", "example", "-o", "jsonpath={.metadata.uid}"), pod
}

func TestTheExampleIsAllowedWhereOnlyRestrictedPodsAre(t *testing.T) {
	uid, pod := example(t)
	if got := pod.Labels["kubevirt.io"] + " " + pod.Labels["kubevirt.io/created-by"] + " " + pod.Annotations["kubevirt.io/domain"]; got != "virt-launcher "+uid+" example" {
		t.Errorf("labels and annotation: %q", got)
	}
	if o := pod.OwnerReferences; len(o) != 1 || string(o[0].UID) != uid || o[0].Kind != "VirtualMachineInstance" {
		t.Errorf("owner %+v: deleting the VMI would leave the pod", o)
	}
	if got := api.Kubectl(t, "get", "vmi", "example", "-o", `jsonpath={.metadata.labels.kubevirt\.io/nodeName}`); got != "node-a" {
		t.Errorf("the VMI is on %q", got)
	}
}

func TestTheExamplesPodOutlastsItsVM(t *testing.T) {
	_, pod := example(t)
	grace, err := strconv.Atoi(api.Kubectl(t, "get", "vmi", "example", "-o", "jsonpath={.spec.terminationGracePeriodSeconds}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := *pod.Spec.TerminationGracePeriodSeconds; got < int64(grace)+15 {
		t.Errorf("the pod has %d s, the VM %d s: not enough to tidy up", got, grace)
	}
}

func TestTheExamplesShimAcceptsItsFlagsAndVolume(t *testing.T) {
	uid, pod := example(t)
	c := pod.Spec.Containers[0]
	env := map[string]string{}
	key := regexp.MustCompile(`^metadata\.(namespace|labels\['(.*)'\]|annotations\['(.*)'\])$`)
	for _, e := range c.Env {
		m := key.FindStringSubmatch(e.ValueFrom.FieldRef.FieldPath)
		switch {
		case m == nil:
			t.Fatalf("%s comes from %s", e.Name, e.ValueFrom.FieldRef.FieldPath)
		case m[2] != "":
			env[e.Name] = pod.Labels[m[2]]
		case m[3] != "":
			env[e.Name] = pod.Annotations[m[3]]
		default:
			env[e.Name] = pod.Namespace
		}
	}
	config, err := shim.ParseConfig(c.Args, func(name string) string { return env[name] })
	if err != nil {
		t.Fatalf("the shim refuses its arguments: %v", err)
	}
	if vm := config.VM; vm.Namespace != "default" || vm.Name != "example" || vm.UID != uid {
		t.Errorf("the shim takes its VM for %+v", vm)
	}
	if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].MountPath != config.Dir || filepath.Dir(config.PIDFile) != config.Dir {
		t.Errorf("mounts %+v, launcher directory %s, pid file %s", c.VolumeMounts, config.Dir, config.PIDFile)
	}
	at := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "vmgrace" && v.EmptyDir != nil })
	if at < 0 || pod.Spec.Volumes[at].EmptyDir.Medium != corev1.StorageMediumMemory || pod.Spec.Volumes[at].EmptyDir.SizeLimit.String() != "1Mi" {
		t.Errorf("volumes %+v", pod.Spec.Volumes)
	}
}

func TestTheExamplesDomainStarts(t *testing.T) {
	text := read(t, "deploy/examples/domain.xml")
	var domain struct {
		Name string `xml:"name"`
	}
	if err := xml.Unmarshal([]byte(text), &domain); err != nil || domain.Name != "default_example" {
		t.Fatalf("domain %q: %v", domain.Name, err)
	}
	file := filepath.Join(machine.Dir, "example.xml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	machine.Virsh(t, "create", file)
	if got := strings.TrimSpace(machine.Virsh(t, "domstate", "default_example")); got != "running" {
		t.Errorf("the domain is %s", got)
	}
	machine.Virsh(t, "destroy", "default_example")
}

func TestTheExampleVMIsAllowedWhereOnlyRestrictedPodsAre(t *testing.T) {
	installCRDs(t)
	api.Kubectl(t, "label", "--overwrite", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
	api.Kubectl(t, "create", "--dry-run=server", "--validate=strict", "-f", root+"deploy/examples/vm.yaml")
	text := read(t, "deploy/examples/vm.yaml")
	vmi, pod := object[kubevirt.VirtualMachineInstance](t, text, "VirtualMachineInstance"), object[corev1.Pod](t, text, "Pod")
	c := pod.Spec.Containers[0]
	fields := map[string]string{
		"VM_NAMESPACE": "metadata.namespace", "VM_NAME": "metadata.annotations['kubevirt.io/domain']", "VM_UID": "metadata.uid",
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil || fields[e.Name] != e.ValueFrom.FieldRef.FieldPath {
			t.Errorf("%+v", e)
		}
		delete(fields, e.Name)
	}
	if len(fields) > 0 || pod.Annotations["kubevirt.io/domain"] != vmi.Name || pod.Namespace != vmi.Namespace || !strings.HasPrefix(pod.Name, "virt-launcher-") {
		t.Errorf("without %v; the pod %+v names VMI %s", fields, pod.ObjectMeta, vmi.Name)
	}
	if _, err := shim.ParseConfig(c.Args, func(name string) string {
		return map[string]string{"VM_NAMESPACE": pod.Namespace, "VM_NAME": vmi.Name, "VM_UID": "u-1"}[name]
	}); err != nil {
		t.Errorf("launcher-shim does not take its flags: %v", err)
	}
	if has, needs := *pod.Spec.TerminationGracePeriodSeconds, *vmi.Spec.TerminationGracePeriodSeconds; has < needs+15 {
		t.Errorf("the pod has %d s, the VM %d s: not enough to tidy up", has, needs)
	}
}
