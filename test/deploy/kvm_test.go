package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vmgrace/vmgrace/internal/shim"
)

// multus is the CRD of Multus, reduced to what the example uses.
const multus = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {config: {type: string}}}}}}
`

// kvm returns the pod of the example with KVM, once the API server has accepted the example.
func kvm(t *testing.T, dir string) corev1.Pod {
	t.Helper()
	api.KubectlApply(t, multus)
	api.Kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd/network-attachment-definitions.k8s.cni.cncf.io")
	api.Kubectl(t, "label", "--overwrite", "namespace", "default", "pod-security.kubernetes.io/enforce=privileged")
	api.Kubectl(t, "create", "--dry-run=server", "--validate=strict", "-k", root+dir)
	return object[corev1.Pod](t, render(t, dir), "Pod")
}

func TestTheExampleWithKVMIsAcceptedAsAVM(t *testing.T) {
	for _, dir := range []string{"deploy/examples/kvm", "deploy/examples/kvm-privileged"} {
		pod := kvm(t, dir)
		c := pod.Spec.Containers[0]
		env := map[string]string{"VM_NAMESPACE": pod.Namespace, "VM_NAME": pod.Name, "VM_UID": "u-1"}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				env[e.Name] = e.Value
			}
		}
		config, err := shim.ParseConfig(c.Args, func(name string) string { return env[name] })
		if err != nil {
			t.Fatalf("%s: launcher-shim refuses its arguments: %v", dir, err)
		}
		if env["VM_GRACE_PERIOD_SECONDS"] != "120" || *pod.Spec.TerminationGracePeriodSeconds < 120+15 {
			t.Errorf("%s: the pod has %d s, the VM %s s: not enough to tidy up", dir, *pod.Spec.TerminationGracePeriodSeconds, env["VM_GRACE_PERIOD_SECONDS"])
		}
		if c.Image != "docker.io/vmgrace/vm-example:"+release(t) || c.VolumeMounts[0].MountPath != config.Dir || pod.Spec.Volumes[0].Name != "vmgrace" {
			t.Errorf("%s: image %s, launcher directory %s in %+v", dir, c.Image, config.Dir, c.VolumeMounts[0])
		}
		privileged := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		if _, plugin := c.Resources.Limits["squat.ai/kvm"]; plugin == privileged || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: privileged: %v, limits %v", dir, privileged, c.Resources.Limits)
		}
	}
}

// Given a network namespace with a card net1, as Multus leaves a pod's, an empty disk and the
// example's seed. When the example's network is made and its QEMU is started by its user, emulated
// in place of KVM, then QEMU has the disk, the seed and the card, whose tap is on the bridge.
func TestTheExampleWithKVMsQEMUStarts(t *testing.T) {
	pod := kvm(t, "deploy/examples/kvm")
	dir := t.TempDir()
	secret := object[corev1.Secret](t, render(t, "deploy/examples/kvm"), "Secret")
	for name, text := range secret.StringData {
		put(t, filepath.Join(dir, "seed", name), text)
	}
	put(t, filepath.Join(dir, "disk.qcow2"), "")
	if err := os.Truncate(filepath.Join(dir, "disk.qcow2"), 1<<20); err != nil {
		t.Fatal(err)
	}
	args := pod.Spec.Containers[0].Args
	args = args[slices.Index(args, "--")+1:]
	for i := range args {
		args[i] = strings.NewReplacer("unix:/run/vm/qmp.sock,server=on,wait=off", "stdio",
			"/disk/", dir+"/", "/seed", dir+"/seed", "driver=qcow2", "driver=raw").Replace(args[i])
	}
	emulated := slices.Index(args, "kvm")
	args[emulated], args[slices.Index(args, "host")] = "tcg", "max"
	args[slices.Index(args, "-serial")+1] = "null"
	script := "ip link add net1 type veth peer name node\n" + pod.Spec.InitContainers[1].Args[0] + `
mknod -m 666 ` + dir + `/tun c 10 200
mount --bind ` + dir + `/tun /dev/net/tun
chown -R 65532 ` + filepath.Dir(dir) + `
setpriv --reuid=65532 --regid=65532 --clear-groups timeout 30 "$@" -S
`
	qemu := exec.CommandContext(t.Context(), "unshare", append([]string{"--net", "--mount", "sh", "-ec", script, "sh"}, args...)...)
	qemu.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"} {"execute":"query-block"} {"execute":"query-rx-filter"}
{"execute":"query-status"} {"execute":"quit"}`)
	out, err := qemu.CombinedOutput()
	for _, want := range []string{`"file": "` + dir + `/disk.qcow2"`, `\"label\": \"cidata\"`, "52:54:00:12:34:56", `"status": "prelaunch"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("QEMU does not say %s", want)
		}
	}
	if err != nil || t.Failed() {
		t.Errorf("%v: %q said\n%s", err, args, out)
	}
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
