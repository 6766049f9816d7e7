package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// whole is a VM of deploy/examples/vm.yaml: a VMI and the launcher pod with its QEMU.
type whole struct {
	w                         *world
	namespace, name, manifest string
	uid                       string // the VMI's
	on                        *cluster.Node
	up                        int // the guest's last known uptime in seconds
}

// wholes applies the example on a node with these names and behaviours, and waits until the VMs
// run and can be moved.
func (w *world) wholes(on *cluster.Node, behaviours map[string]string) map[string]*whole {
	w.Helper()
	all := map[string]*whole{}
	for name, behaviour := range behaviours {
		all[name] = w.whole(on, name, behaviour)
	}
	for _, v := range all {
		v.movable()
	}
	w.step("%d VMs", len(all))
	return all
}

// whole applies the example on a node. edits are further pairs of old and new text.
func (w *world) whole(on *cluster.Node, name, behaviour string, edits ...string) *whole {
	w.Helper()
	text := w.example("vm.yaml", append([]string{"vmgrace/vm-example", "vmgrace/vm-example", "vm-example", name, "namespace: default", "namespace: " + namespace,
		"restartPolicy: Never", "restartPolicy: Never\n  nodeName: " + on.Name, "cpu: 100m", "cpu: 50m"}, edits...)...)
	text = regexp.MustCompile(`quiet polite.*`).ReplaceAllString(text, "quiet uptime=1 "+behaviour)
	return w.apply(&whole{w: w, namespace: namespace, name: name, on: on, manifest: text})
}

func (w *world) apply(v *whole) *whole {
	w.Helper()
	w.afterwards("delete", "-n", v.namespace, "vmi/"+v.name, "pod/virt-launcher-"+v.name, "--ignore-not-found", "--grace-period=2", "--wait=false")
	w.KubectlApply(w, v.manifest)
	v.uid = v.vmi("{.metadata.uid}")
	return v
}

// get reads from an object in the VM's namespace, "" if it does not exist.
func (v *whole) get(kind, name, path string) string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: kind, Namespace: v.namespace, Name: name, Path: path})
}

func (v *whole) vmi(path string) string { v.w.Helper(); return v.get("vmi", v.name, path) }

// movable waits until the VM runs, its guest has booted, and its node says that it can be moved.
func (v *whole) movable() {
	v.w.Helper()
	const path = `{.status.phase} {.status.nodeName} {.status.conditions[?(@.type=="LiveMigratable")].status}`
	node.Eventually(v.w, 6*soon, func() bool { return v.vmi(path) == "Running "+v.on.Name+" True" },
		"%s does not run where it can be moved: %s", v.name, v.vmi("{.status}"))
	node.Eventually(v.w, 6*soon, func() bool { return strings.Contains(v.console(), "since it booted") }, "the guest of %s does not boot", v.name)
	v.w.budgetOf(v.namespace, v.uid, v.name)
	v.up = v.uptime()
}

// budgetOf waits until the disruption budget of a VM keeps its one launcher.
func (w *world) budgetOf(namespace, uid, name string) {
	w.Helper()
	node.Eventually(w, 2*soon, func() bool {
		return w.find(objects.Query{Kind: "pdb", Namespace: namespace, Name: "kubevirt-disruption-budget-" + uid,
			Path: "{.spec.minAvailable}/{.status.currentHealthy}/{.status.disruptionsAllowed}"}) == "1/1/0"
	}, "the disruption budget of %s is not in force", name)
}

// pod returns the name of the VM's launcher pod on its node, "" if none runs there.
func (v *whole) pod() string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "pod", Namespace: v.namespace, Labels: "kubevirt.io/created-by=" + v.uid,
		Fields: "status.phase=Running,spec.nodeName=" + v.on.Name, Path: "{.items[*].metadata.name}"})
}

// console returns what the guest has said on its node, as kubectl logs shows it.
func (v *whole) console() string {
	v.w.Helper()
	pod := v.pod()
	if pod == "" {
		return ""
	}
	out, err := v.w.TryKubectl(v.w.Context(), "", "logs", "-n", v.namespace, pod)
	if err != nil {
		return "" // its container has not been made yet
	}
	return out
}

var sinceItBooted = regexp.MustCompile(`vmgrace-guest: (\d+) s since it booted`)

// uptime returns the last uptime that the guest has said on its node, -1 if it has said none.
func (v *whole) uptime() int {
	v.w.Helper()
	all := sinceItBooted.FindAllStringSubmatch(v.console(), -1)
	if all == nil {
		return -1
	}
	last, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		v.w.Fatal(err)
	}
	return last
}

// moved waits until the VM runs on another node, and checks that the same guest goes on there.
func (v *whole) moved(to *cluster.Node) {
	w := v.w
	w.Helper()
	is := ""
	if !node.Poll(w.Context(), 3*soon, func() bool {
		is = v.vmi("{.status.phase} {.status.nodeName} {.status.evacuationNodeName}")
		return is == "Running "+to.Name
	}) {
		w.Fatalf("%s does not run on %s: it is %q, its pods %s\n%s", v.name, to.Name, is, v.pods(), w.Kubectl(w, "describe", "vmi,vmim,pods", "-n", v.namespace))
	}
	from := v.on
	v.on = to
	node.Eventually(w, 2*soon, func() bool { return v.uptime() >= v.up }, "the guest of %s does not go on: it was up for %d s, now %d", v.name, v.up, v.uptime())
	if said := v.console(); strings.Contains(said, "vmgrace-guest: up") || strings.Contains(said, "press") || strings.Contains(said, "another writes") {
		w.Errorf("%s booted again, was asked, or was not alone on its disk:\n%s", v.name, said)
	}
	if label := v.vmi(`{.metadata.labels.kubevirt\.io/nodeName}`); label != to.Name {
		w.Errorf("the label of %s names %s", v.name, label)
	}
	v.up = v.uptime()
	v.movable()
	node.Eventually(w, soon, func() bool {
		records, ok := w.records(from)
		for _, r := range records {
			ok = ok && r.Name != v.name
		}
		return ok
	}, "the record of %s on %s is still there", v.name, from.Name)
}

// asked counts what the VM's Events say of a shutdown that began or ended, not of one that was held.
func (v *whole) asked() (n int) {
	v.w.Helper()
	reasons := v.w.find(objects.Query{Kind: "event", Namespace: v.namespace, Fields: "involvedObject.uid=" + v.uid, Path: "{.items[*].reason}"})
	return strings.Count(reasons, "ShutdownStarted") + strings.Count(reasons, "ShutdownCompleted")
}

// migrations returns the phase and the cause of each migration of the VM.
func (v *whole) migrations() string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "vmim", Namespace: v.namespace,
		Path: `{range .items[?(@.spec.vmiName=="` + v.name + `")]}{.status.phase} {.metadata.annotations.vmgrace\.io/evacuation-cause};{end}`})
}

// migrate makes a migration.
func (v *whole) migrate(name string) {
	v.w.Helper()
	v.w.afterwards("delete", "vmim", "-n", v.namespace, name, "--ignore-not-found")
	v.w.KubectlApply(v.w, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: `+name+`, namespace: `+v.namespace+`}
spec: {vmiName: `+v.name+`}
`)
}

// launchers returns how many launcher pods of the VM have not ended.
func (v *whole) launchers() int {
	v.w.Helper()
	return len(strings.Fields(v.w.find(objects.Query{Kind: "pod", Namespace: v.namespace, Labels: "kubevirt.io/created-by=" + v.uid,
		Fields: "status.phase!=Succeeded,status.phase!=Failed", Path: "{.items[*].metadata.name}"})))
}

// pods returns where each launcher pod of the VM is, and how it has ended, in one line.
func (v *whole) pods() string {
	v.w.Helper()
	return v.w.find(objects.Query{Kind: "pod", Namespace: v.namespace, Labels: "kubevirt.io/created-by=" + v.uid,
		Path: `{range .items[*]}{.spec.nodeName} {.status.phase} {.status.reason} {.status.message} {.status.containerStatuses[*].state.terminated.exitCode} {.status.containerStatuses[*].state.terminated.reason}; {end}`})
}

// gone waits until nothing is left of the VM.
func (v *whole) gone() {
	v.w.Helper()
	node.Eventually(v.w, 2*soon, func() bool {
		return v.vmi("{.metadata.name}") == "" && v.w.find(objects.Query{Kind: "pod", Namespace: v.namespace, Labels: "kubevirt.io/created-by=" + v.uid, Path: "{.items[*].metadata.name}"}) == ""
	}, "something is left of %s", v.name)
}

// sharedDisk creates a volume that all nodes see, with an empty disk, and its claim.
func (w *world) sharedDisk(name string) {
	w.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "vmgrace-e2e-")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = os.RemoveAll(dir) })
	disk := filepath.Join(dir, "disk")
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o666); err != nil {
		w.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o777, disk: 0o666} { // the pod is not root
		if err := os.Chmod(path, mode); err != nil {
			w.Fatal(err)
		}
	}
	w.afterwards("delete", "pv/"+name, "--ignore-not-found", "--wait=false")
	w.afterwards("delete", "-n", namespace, "pvc/"+name, "--ignore-not-found", "--wait=false")
	w.KubectlApply(w, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Gi}
  claimRef: {namespace: %[2]s, name: %[1]s}
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %[3]s, type: Directory}
---
`, name, namespace, dir)+claim(name, "ReadWriteMany", name))
}

// withDisk returns the edits of the example that give it the disk of a claim.
func withDisk(claim string) []string {
	return []string{
		"        - -display\n", "        - -drive\n        - if=virtio,format=raw,cache=none,file=/disk/disk\n        - -display\n",
		"      volumeMounts:\n", "      volumeMounts:\n        - name: disk\n          mountPath: /disk\n",
		"  volumes:\n", "  volumes:\n    - name: disk\n      persistentVolumeClaim:\n        claimName: " + claim + "\n",
	}
}
