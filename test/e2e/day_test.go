//go:build nightly

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/node"
)

// step is a row of the table of docs/kubernetes.md that says what comes of what a user does.
type step struct {
	does  string // the row's first column
	kinds string // of VM
	live  func(d *day, kind string)
}

// Steps of a VM of their own, side by side.
func apart() []step {
	const both = domain + inPod
	return []step{
		{"make a VM, and reboot it in the guest", both, reboot},
		{"power off in the guest", both, powerOff},
		{"kill QEMU, or it crashes", both, crash},
		{"`virsh destroy`", domain, virshDestroy},
		{"`virsh save`, and restore it", domain, saveAndRestore},
		{"edit `terminationGracePeriodSeconds`", both, editGrace},
		{"delete the launcher pod", both, deletePod},
		{"`kubectl delete vmi`", both, deleteVMI},
		{"`kubectl vmgrace shutdown --grace 5s` after that", both, shorten},
		{"`kubectl delete vmi --cascade=orphan`", both, orphan},
		{"`kubectl delete vmi --cascade=foreground`", domain, foreground},
		{"delete the VMI of a guest that does not hear", both, deafGuest},
		{"apply the same file again, after a delete", inPod, applyAfterDelete},
		{"apply the same file again, without one", inPod, applyAgain},
		{"delete a VMI with a finalizer, of a pod with `restartPolicy: Always`", inPod, staysOff},
		{"misspell the label `kubevirt.io: virt-launcher`", both, misspeltLabel},
		{"start the domain by another name", domain, misnamedDomain},
		{"write a `created-by` of no VMI", domain, wrongCreatedBy},
	}
}

// Steps that move VMs, slowly, side by side.
func moving() []step {
	const both = domain + inPod
	return []step{
		{"`kubectl vmgrace migrate`, there and back", both, thereAndBack},
		{"`kubectl vmgrace cancel` in the middle of a move", both, cancelAMove},
	}
}

// Steps of a whole node, one after the other.
func wholeNodes() []step {
	const each = ""
	return []step{
		{"drain a node, with nowhere to go, of VMs that go off", each, drainOfOnesThatEnd},
		{"`kubectl vmgrace drain --dry-run=server`", each, dryRun},
		{"the agent is restarted in a move", each, agentRestarted},
		{"power off while no agent runs", each, offWithoutAgents},
	}
}

// Given two nodes with both kinds of VM. When a user does what docs/kubernetes.md lists, then comes
// of it what stands there, and it is said where that says so.
func TestADayOfAVM(t *testing.T) {
	w := given(t)
	w.controller()
	d := &day{world: w, program: filepath.Join(t.TempDir(), "kubectl-vmgrace")}
	if out, err := exec.Command("go", "build", "-o", d.program, "../../cmd/kubectl-vmgrace").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var lived []string
	for _, s := range slices.Concat(apart(), moving(), wholeNodes()) {
		lived = append(lived, s.does)
	}
	if listed := whatYouDo(t); !slices.Equal(lived, listed) {
		t.Errorf("docs/kubernetes.md lists\n%s\nand this test lives\n%s", strings.Join(listed, "\n"), strings.Join(lived, "\n"))
	}
	d.sideBySide("apart", apart())
	w.KubectlApply(t, `
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: vmgrace, namespace: `+agents+`}
spec: {configuration: {migrations: {bandwidthPerMigration: 4Mi}}}
`)
	w.afterwards("delete", "kubevirt", "vmgrace", "-n", agents, "--ignore-not-found")
	d.sideBySide("moving", moving())
	for _, s := range wholeNodes() {
		t.Run(s.does, func(t *testing.T) { s.live(d.in(t), "") })
	}
}

func (d *day) sideBySide(name string, steps []step) {
	d.Run(name, func(t *testing.T) {
		for _, s := range steps {
			for _, kind := range s.kinds {
				t.Run(s.does+"/"+string(kind), func(t *testing.T) { t.Parallel(); s.live(d.in(t), string(kind)) })
			}
		}
	})
}

// whatYouDo returns the first column of the table of docs/kubernetes.md.
func whatYouDo(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## What you do, and what happens\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		if cell, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(line, "| ") {
			all = append(all, cell)
		}
	}
	return all[min(1, len(all)):] // without the head
}

func reboot(d *day, kind string) {
	v := d.vm(kind, "rebooted", wish{})
	v.reset()
	v.boots(2)
	v.up()
	v.unasked()
}

func powerOff(d *day, kind string) {
	v := d.vm(kind, "off", wish{})
	v.press()
	v.ended("Succeeded", "Succeeded")
	v.unasked()
	d.Kubectl(d, "delete", "vmi", v.name, "-n", namespace)
	v.gone()
}

func crash(d *day, kind string) {
	v := d.vm(kind, "crashed", wish{})
	v.crash()
	v.ended("Failed", "Failed")
	v.unasked()
}

func virshDestroy(d *day, kind string) {
	v := d.vm(kind, "destroyed", wish{})
	v.l.Virsh(d, "destroy")
	v.ended("Succeeded", "Succeeded")
	v.unasked()
}

func saveAndRestore(d *day, kind string) {
	v := d.vm(kind, "saved", wish{})
	file := "/var/lib/libvirt/" + v.l.Domain + ".save"
	v.l.Virsh(d, "save", file)
	v.told("saved")
	node.Never(d, 10*time.Second, func() bool { return v.pod("{.status.phase}") != "Running" }, "the launcher of a saved VM ends")
	v.l.Node.Virsh(d, "restore", file)
	v.l.Guest = v.l.At(d, v.l.Node)
	v.l.waitGuarded()
	v.is("Running", "Running")
	v.unasked()
	v.press()
	v.ended("Succeeded", "Succeeded")
}

func editGrace(d *day, kind string) {
	v := d.vm(kind, "edited", wish{grace: 20, behaviour: "deaf"})
	for _, grace := range []int{25, 5} {
		v.edit("terminationGracePeriodSeconds", grace)
		node.Eventually(d, soon, func() bool {
			said, _ := d.says("status", v.name)
			return strings.Contains(said, fmt.Sprintf(" %ds", grace))
		},
			"status does not say %d s", grace)
	}
	begin := time.Now()
	d.Kubectl(d, "delete", "pod", "virt-launcher-"+v.name, "-n", namespace)
	if took := time.Since(begin); took < 5*time.Second || took > 20*time.Second {
		d.Errorf("the guest has had %v", took)
	}
	v.told("ShutdownForced")
}

func deletePod(d *day, kind string) {
	v := d.vm(kind, "podless", wish{})
	d.Kubectl(d, "delete", "pod", "virt-launcher-"+v.name, "-n", namespace)
	v.is("Succeeded", "")
	v.told("ShutdownStarted", "ShutdownCompleted")
}

func deleteVMI(d *day, kind string) {
	v := d.vm(kind, "deleted", wish{})
	d.Kubectl(d, "delete", "vmi", v.name, "-n", namespace)
	v.gone()
	v.told("ShutdownStarted", "ShutdownCompleted")
}

func shorten(d *day, kind string) {
	v := d.vm(kind, "shortened", wish{grace: 300, behaviour: "deaf"})
	d.Kubectl(d, "delete", "vmi", v.name, "-n", namespace)
	var said string
	node.Eventually(d, soon, func() bool { said, _ = d.says("status", v.name); return strings.Contains(said, "ShuttingDown") },
		"kubectl vmgrace status of a VM without its VMI: %s", later(func() string { return said }))
	if out, err := d.says("shutdown", v.name, "--grace", "5s", "-y"); err != nil {
		d.Errorf("kubectl vmgrace shutdown: %v: %s", err, out)
	}
	node.Eventually(d, soon, func() bool { return v.pod("{.metadata.name}") == "" }, "its grace period is not shortened")
	v.told("GraceShortened", "ShutdownForced")
}

func orphan(d *day, kind string) {
	v := d.vm(kind, "orphan", wish{})
	d.Kubectl(d, "delete", "vmi", v.name, "-n", namespace, "--cascade=orphan")
	v.is("", "Succeeded")
	v.told("ShutdownStarted", "ShutdownCompleted")
	d.Kubectl(d, "delete", "pod", "virt-launcher-"+v.name, "-n", namespace)
	v.gone()
}

func foreground(d *day, kind string) {
	v := d.vm(kind, "foreground", wish{behaviour: "slow=6"})
	begin := time.Now()
	d.Kubectl(d, "delete", "vmi", v.name, "-n", namespace, "--cascade=foreground")
	if took := time.Since(begin); took < 6*time.Second || v.pod("{.metadata.name}") != "" {
		d.Errorf("kubectl has waited for %v, not for the guest", took)
	}
	v.told("ShutdownStarted", "ShutdownCompleted")
}

func deafGuest(d *day, kind string) {
	v := d.vm(kind, "deaf", wish{grace: 5, behaviour: "deaf", finalizer: true})
	d.delete("vmi/" + v.name)
	node.Eventually(d, 2*soon, func() bool { return v.vmi("{.status.phase}") == "Failed" }, "the VMI of what was destroyed is not Failed: %s", later(func() string { return v.vmi("{.status}") }))
	v.told("ShutdownForced")
}

func applyAfterDelete(d *day, kind string) {
	v := d.vm(kind, "again", wish{})
	if out, err := d.kubectl(v.p.manifest, "delete", "-f", "-"); err != nil {
		d.Fatalf("%v: %s", err, out)
	}
	v.gone()
	d.KubectlApply(d, v.p.manifest)
	v.uid = v.vmi("{.metadata.uid}")
	v.p.uid = v.uid
	v.up()
}

func applyAgain(d *day, kind string) {
	v := d.vm(kind, "remade", wish{})
	d.Kubectl(d, "delete", "pod", "virt-launcher-"+v.name, "-n", namespace)
	v.is("Succeeded", "")
	out, err := d.kubectl(v.p.manifest, "apply", "-f", "-")
	if err != nil || !strings.Contains(out, "Warning: vmgrace: this pod is a VM by itself, and no launcher of VMI "+v.name) {
		d.Errorf("nothing says what it is: %v\n%s", err, out)
	}
	node.Eventually(d, 2*soon, func() bool { return v.pod("{.status.phase}") == "Running" }, "the second pod does not run")
	d.Kubectl(d, "delete", "vmi", v.name, "-n", namespace)
	d.KubectlApply(d, v.p.manifest)
	v.uid = v.vmi("{.metadata.uid}")
	v.p.uid = v.uid
	v.up()
}

func staysOff(d *day, kind string) {
	v := d.vm(kind, "always", wish{finalizer: true, edits: []string{"  # One launcher is one instance of the VM: it is not started again.\n  restartPolicy: Never", "  restartPolicy: Always\n  nodeName: " + d.a.Name}})
	qemu := v.qemu()
	d.delete("vmi/" + v.name)
	node.Eventually(d, soon, func() bool { return syscall.Kill(qemu, 0) != nil }, "the guest is not shut down")
	node.Never(d, 20*time.Second, func() bool {
		pod := v.pod("{.status.containerStatuses[0].state.running.startedAt} {.status.containerStatuses[0].restartCount}")
		return strings.HasSuffix(pod, " 1") && !strings.HasPrefix(pod, " ") && strings.Contains(v.console(), "vmgrace-guest: up")
	}, "what was shut down boots again")
}

func misspeltLabel(d *day, kind string) {
	name := strings.ToLower(kind) + "-misspelt"
	d.afterwards("delete", "-n", namespace, "vmi/"+name, "pod/virt-launcher-"+name, "--ignore-not-found", "--grace-period=1", "--wait=false")
	p := plan{Spec: node.Spec{Name: name}, on: d.a, grace: 20}
	text := d.launcher(p, d.vmi(p))
	if kind == inPod {
		text = d.example("vm.yaml", "vmgrace/vm-example", "vmgrace/vm-example", "vm-example", name, "namespace: default", "namespace: "+namespace)
	}
	out, err := d.kubectl(strings.Replace(text, "kubevirt.io: virt-launcher", "kubevirt.io: virt-luncher", 1), "apply", "-f", "-")
	if err != nil || !strings.Contains(out, "Warning: ") || !strings.Contains(out, "has not the label kubevirt.io=virt-launcher") {
		d.Errorf("nobody warns: %v\n%s", err, out)
	}
}

func misnamedDomain(d *day, _ string) {
	v, _ := d.mistaken("misnamed", nil)
	d.a.Start(d, node.Spec{Namespace: namespace, Name: v.name + "-typo", Firmware: true})
	node.Eventually(d, 4*soon, func() bool { return strings.Contains(v.said(), namespace+"_"+v.name) }, "nothing names the domain that is awaited: %s", later(v.said))
}

func wrongCreatedBy(d *day, _ string) {
	v, warned := d.mistaken("stranger", func(string) string { return "00000000-0000-4000-8000-000000000000" })
	if !strings.Contains(warned, "its label kubevirt.io/created-by is 00000000-") {
		d.Errorf("nobody warns: %s", warned)
	}
	if said, _ := d.says("status"); strings.Count(said, v.name) != 2 {
		d.Errorf("kubectl vmgrace status does not list VMI and pod:\n%s", said)
	}
}

// mistaken makes a VMI and a launcher without a domain. other makes another UID of the VMI's.
func (d *day) mistaken(name string, other func(uid string) string) (v *lived, warned string) {
	d.Helper()
	v = &lived{d: d, name: "l-" + name}
	d.afterwards("delete", "-n", namespace, "vmi/"+v.name, "pod/virt-launcher-"+v.name, "--ignore-not-found", "--grace-period=1", "--wait=false")
	p := plan{Spec: node.Spec{Name: v.name}, on: d.a, grace: 20}
	v.uid = d.vmi(p)
	uid := v.uid
	if other != nil {
		uid = other(uid)
	}
	p.orphan = other != nil
	warned, err := d.kubectl(d.launcher(p, uid), "apply", "-f", "-")
	if err != nil {
		d.Fatalf("%v: %s", err, warned)
	}
	return v, warned
}

func thereAndBack(d *day, kind string) {
	v := d.vm(kind, "moved", wish{})
	for _, to := range []int{1, 0} {
		if out, err := d.says("migrate", v.name, "--wait"); err != nil {
			d.Errorf("kubectl vmgrace migrate: %v: %s", err, out)
		}
		v.moved(d.Nodes[to])
	}
}

func cancelAMove(d *day, kind string) {
	v := d.vm(kind, "cancelled", wish{grace: 150, on: d.b})
	if out, err := d.says("migrate", v.name); err != nil {
		d.Fatalf("kubectl vmgrace migrate: %v: %s", err, out)
	}
	v.sent()
	if out, err := d.says("cancel", v.name); err != nil {
		d.Errorf("kubectl vmgrace cancel: %v: %s", err, out)
	}
	begin := time.Now()
	node.Eventually(d, soon, func() bool { return v.launchers() == 1 }, "the target pod stays")
	d.step("the target pod goes after %.1f s", time.Since(begin).Seconds())
	if out, err := d.says("migrate", v.name, "--wait"); err != nil {
		d.Errorf("kubectl vmgrace migrate: %v: %s", err, out)
	}
	v.moved(d.a)
}

func drainOfOnesThatEnd(d *day, _ string) {
	var off, none []*lived
	for _, kind := range []string{domain, inPod} {
		off = append(off, d.begin(kind, "off", wish{on: d.b}))
		none = append(none, d.begin(kind, "none", wish{on: d.b}))
	}
	for _, v := range slices.Concat(off, none) {
		v.up()
	}
	for _, n := range d.Nodes {
		d.afterwards("uncordon", n.Name)
	}
	d.Kubectl(d, "cordon", d.a.Name)
	said, stop := d.drain(d.b.Name)
	for _, v := range slices.Concat(off, none) {
		node.Eventually(d, soon, func() bool { return v.vmi("{.status.evacuationNodeName}") == d.b.Name }, "%s is not marked: %s", v.name, later(said))
		v.told("NoRoom")
	}
	why, _ := d.says("why", d.b.Name)
	for _, v := range none {
		if !strings.Contains(why, "virt-launcher-"+v.name) {
			d.Errorf("kubectl vmgrace why does not name %s:\n%s", v.name, why)
		}
		v.edit("evictionStrategy", "None")
	}
	for _, v := range off {
		v.press()
	}
	for _, v := range none {
		node.Eventually(d, 2*soon, func() bool { return v.vmi("{.status.phase}") == "Succeeded" }, "%s is not shut down: %s", v.name, later(v.said))
		v.told("ShutdownStarted", "ShutdownCompleted")
	}
	for _, v := range off {
		node.Eventually(d, 2*soon, func() bool { return v.vmi("{.status.phase}") == "Succeeded" }, "%s has not ended: %s", v.name, later(v.said))
		v.unasked()
	}
	node.Eventually(d, soon, func() bool { return strings.Contains(said(), "node/"+d.b.Name+" drained") }, "kubectl drain does not end: %s", later(said))
	stop()
	d.step("drained")
}

func dryRun(d *day, _ string) {
	v := d.vm(inPod, "asked", wish{on: d.b})
	d.afterwards("uncordon", d.b.Name)
	out, err := d.says("drain", d.b.Name, "--dry-run=server", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
	if err != nil || !strings.Contains(out, "virt-launcher-"+v.name) || !strings.Contains(out, "would be moved") {
		d.Errorf("kubectl vmgrace drain --dry-run=server: %v\n%s", err, out)
	}
	if v.vmi("{.status.evacuationNodeName}") != "" {
		d.Error("a dry run has marked it")
	}
}

func agentRestarted(d *day, _ string) {
	all := []*lived{d.begin(domain, "between", wish{}), d.begin(inPod, "between", wish{})}
	for _, v := range all {
		v.up()
		if out, err := d.says("migrate", v.name); err != nil {
			d.Fatalf("kubectl vmgrace migrate: %v: %s", err, out)
		}
	}
	for _, v := range all {
		v.sent()
	}
	d.Kubectl(d, "delete", "pods", "-n", agents, d.agent(d.a))
	d.waitAgents()
	for _, v := range all {
		node.Eventually(d, 4*soon, func() bool {
			m := v.migrations()
			return strings.HasPrefix(m, "Succeeded") || strings.HasPrefix(m, "Failed") && strings.Contains(m, "restarted")
		}, "the move of %s does not end with its reason: %s", v.name, later(v.migrations))
		d.step("%s: %s", v.name, v.migrations())
		v.unasked()
		node.Eventually(d, soon, func() bool { return v.launchers() == 1 }, "%s has %d launchers", v.name, v.launchers())
	}
}

func offWithoutAgents(d *day, _ string) {
	all := []*lived{d.begin(domain, "unseen", wish{}), d.begin(inPod, "unseen", wish{on: d.b})}
	for _, v := range all {
		v.up()
	}
	d.withoutAgents(func() {
		for _, v := range all {
			v.press()
		}
	})
	for _, v := range all {
		v.ended("Succeeded", "Succeeded")
		v.unasked()
	}
}
