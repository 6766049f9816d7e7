package cgroup2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/kit"
	"github.com/vmgrace/vmgrace/test/node"
)

// tests are those that run in the guest: a package, and which of its tests.
var tests = []struct{ name, pkg, run string }{
	{"deadline", "internal/node/deadline", "^(TestOnlyTheDeadlineThreadIsARealTimeOne|TestTheThreadHasPriorityInAContainersCgroup|TestManyDeadlines.*)$"},
	{"reboot", "internal/node/besidekubevirt/reboot", "^TestALaunchersProcessesAreFoundBelowItsPodsCgroup$"},
	{"inpod", "pkg/hypervisor/inpod", "^Test(AVMIsFoundInTheCgroupOfItsPodAlone|APIDIsThatOfTheShimsNamespace|ATruthAfterManyLies.*|AProcess.*|APIDThatWasReused.*|AVMProcessIsTheOneThatWasStarted|ALauncher.*)$"},
	{"agent", "test/faults/cgroup2/inside", "."},
}

// limit bounds the guest's life: a minute is usual.
const limit = 4 * time.Minute

// Given a kernel with cgroups of version 2 only, then what reads cgroups works as with version 1.
func TestWithCgroupsOfVersion2Only(t *testing.T) {
	api := cluster.NewAPI(t)
	all := &archive{has: map[string]bool{}}
	all.file(t, "/cgroup2", "init")
	all.add("/vms", []byte(vms(t, api)))
	all.add("/kubeconfig", kubeconfig(t, api))
	for _, name := range []string{"node-agent", "launcher-shim"} {
		all.program(t, "/bin/"+name, node.Shipped(t, name))
	}
	for _, name := range []string{"sh", "sleep", "unshare"} { // busybox's do less, or only by that name
		from, err := exec.LookPath(name)
		kit.Must(t, err)
		all.program(t, "/bin/"+name, from)
	}
	dir, script := t.TempDir(), ""
	for _, p := range tests {
		file := filepath.Join(dir, p.name)
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-tags", "libvirt_dlopen,guest", "-ldflags", "-s -w", "-o", file, "./"+p.pkg)
		build.Dir = "../../.."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
		all.program(t, "/tests/"+p.name+".test", file)
		script += fmt.Sprintf("run %s '-test.run=%s'\n", p.name, p.run)
	}
	all.add("/run.sh", []byte(script))

	said := boot(t, all.end())
	for _, p := range tests {
		if !strings.Contains(said, "vmgrace-guest: "+p.name+": exit status 0") {
			t.Errorf("%s failed, or did not end within %v", p.name, limit)
		}
	}
	if strings.Contains(said, "--- SKIP") {
		t.Error("a test was skipped")
	}
	if t.Failed() {
		t.Logf("the guest said:\n%s", said)
	}
}

// boot runs a guest with more in its initramfs until it powers off, and returns what it has said.
func boot(t *testing.T, more []byte) (said string) {
	t.Helper()
	kernel, initrd := node.GuestImage(t)
	first, err := os.ReadFile(initrd)
	kit.Must(t, err)
	both := filepath.Join(t.TempDir(), "initrd")
	kit.Must(t, os.WriteFile(both, append(first, more...), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "qemu64,+rdrand", "-m", "1G", "-display", "none", "-nodefaults",
		"-serial", "stdio", "-no-reboot", "-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-kernel", kernel, "-initrd", both, "-append", node.KernelArgs+"panic=-1 random.trust_cpu=on cgroup_no_v1=all,named rdinit=/cgroup2").CombinedOutput()
	if err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("the guest: %v\n%s", err, out)
	}
	return strings.ReplaceAll(string(out), "\r", "")
}

// kubeconfig is that of cluster-admin, for the guest: its network has this machine at 10.0.2.2.
func kubeconfig(t *testing.T, api *cluster.API) []byte {
	t.Helper()
	text, err := os.ReadFile(api.Kubeconfig)
	kit.Must(t, err)
	there := strings.Replace(api.URL, "127.0.0.1", "10.0.2.2", 1)
	old := fmt.Sprintf(`"server":%q`, api.URL)
	if !json.Valid(text) || !strings.Contains(string(text), old) {
		t.Fatalf("the kubeconfig has no %s", old)
	}
	return []byte(strings.Replace(string(text), old, fmt.Sprintf(`"server":%q,"tls-server-name":"127.0.0.1"`, there), 1))
}

// vms makes VMIs with their launcher pods, which no kubelet runs, and returns a line for each: name, UID of the
// VMI, UID of the pod.
func vms(t *testing.T, api *cluster.API) (lines string) {
	t.Helper()
	api.Kubectl(t, "apply", "-k", "../../../deploy/crds")
	api.Kubectl(t, "wait", "--for=condition=Established", "crd/virtualmachineinstances.kubevirt.io", "--timeout=20s")
	for _, name := range []string{"systemd", "systemd-liar", "cgroupfs", "cgroupfs-liar"} {
		api.KubectlApply(t, fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, namespace: default, labels: {kubevirt.io/nodeName: guest}}
spec: {terminationGracePeriodSeconds: 4}
`, name))
		uid := api.Kubectl(t, "get", "vmi", name, "-o", "jsonpath={.metadata.uid}")
		api.KubectlApply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: launcher-%[1]s
  labels: {kubevirt.io: virt-launcher, kubevirt.io/created-by: %[2]q}
  annotations: {kubevirt.io/domain: %[1]s}
spec: {nodeName: guest, terminationGracePeriodSeconds: 600, containers: [{name: launcher, image: none}]}
`, name, uid))
		lines += fmt.Sprintln(name, uid, api.Kubectl(t, "get", "pod", "launcher-"+name, "-o", "jsonpath={.metadata.uid}"))
	}
	return lines
}
