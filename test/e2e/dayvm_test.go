//go:build nightly

package e2e

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/test/cluster"
	"github.com/vmgrace/vmgrace/test/node"
	"github.com/vmgrace/vmgrace/test/objects"
)

// The two kinds of VM.
const (
	domain = "L" // a domain of the node's libvirt, with deploy/examples/launcher.yaml
	inPod  = "P" // QEMU in the launcher pod: deploy/examples/vm.yaml
)

// day is the cluster as one step of the day uses it.
type day struct {
	*world
	program string // kubectl-vmgrace
}

// in returns the day for a step of it.
func (d *day) in(t *testing.T) *day {
	t.Helper()
	return &day{world: &world{T: t, suite: d.suite, since: time.Now()}, program: d.program}
}

// says runs kubectl vmgrace, which may fail, and returns what it prints.
func (d *day) says(args ...string) (said string, err error) {
	if args[0] != "why" && args[0] != "drain" { // those are of a node
		args = append(args, "-n", namespace)
	}
	out, err := exec.CommandContext(d.Context(), d.program, append(args, "--kubeconfig", d.Kubeconfig)...).CombinedOutput()
	return string(out), err
}

// kubectl runs kubectl, which may fail, and returns all that it prints.
func (d *day) kubectl(stdin string, args ...string) (said string, err error) {
	cmd := d.Command(d.Context(), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// lived is a VM of either kind, as its user sees it.
type lived struct {
	d         *day
	name, uid string // of the VMI
	l         *vm    // nil for a VM in its pod
	p         *whole // nil for a domain
}

// wish is what a step wants of its VM beside the kind.
type wish struct {
	on        *cluster.Node // nil = the first node
	grace     int           // 0 = 60 s
	behaviour string        // of the guest; "" = polite
	edits     []string      // of deploy/examples/vm.yaml
	finalizer bool
}

// vm makes a VM and waits until it runs and is guarded.
func (d *day) vm(kind, name string, is wish) *lived {
	d.Helper()
	v := d.begin(kind, name, is)
	v.up()
	d.step("%s runs", v.name)
	return v
}

// begin makes a VM.
func (d *day) begin(kind, name string, is wish) *lived {
	d.Helper()
	if is.on == nil {
		is.on = d.a
	}
	if is.grace == 0 {
		is.grace = 60
	}
	v := &lived{d: d, name: strings.ToLower(kind) + "-" + name}
	if kind == domain {
		v.l = d.make(plan{Spec: node.Spec{Name: v.name, Behaviour: is.behaviour}, on: is.on, grace: is.grace, strategy: "LiveMigrate", finalizer: is.finalizer})
		v.uid = v.l.uid
		return v
	}
	edits := append([]string{"terminationGracePeriodSeconds: 20", fmt.Sprintf("terminationGracePeriodSeconds: %d", is.grace),
		"terminationGracePeriodSeconds: 50", fmt.Sprintf("terminationGracePeriodSeconds: %d", is.grace+30)}, is.edits...)
	v.p = d.whole(is.on, v.name, is.behaviour, edits...)
	v.uid = v.p.uid
	if is.finalizer {
		d.Kubectl(d, "patch", "vmi", v.name, "-n", namespace, "--type=merge", "-p", `{"metadata":{"finalizers":["`+finalizer+`"]}}`)
		d.afterwards("patch", "vmi", v.name, "-n", namespace, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	}
	return v
}

// up waits until the VM runs, is guarded and can be moved.
func (v *lived) up() {
	v.d.Helper()
	if v.p != nil {
		v.p.movable()
	} else {
		v.l.WaitUp(v.d)
		v.l.waitGuarded()
	}
	v.is("Running", "Running")
	node.Eventually(v.d, 2*soon, func() bool { return v.migratable() == "True" }, "%s cannot be moved: %s", v.name, v.vmi("{.status.conditions}"))
	if said, err := v.d.says("status", v.name); err != nil || !regexp.MustCompile(v.name+` .* Running `).MatchString(said) {
		v.d.Errorf("kubectl vmgrace status: %v\n%s", err, said)
	}
}

func (v *lived) get(kind, name, path string) string {
	v.d.Helper()
	return v.d.find(objects.Query{Kind: kind, Namespace: namespace, Name: name, Path: path})
}

func (v *lived) vmi(path string) string { v.d.Helper(); return v.get("vmi", v.name, path) }
func (v *lived) pod(path string) string {
	v.d.Helper()
	return v.get("pod", "virt-launcher-"+v.name, path)
}

func (v *lived) migratable() string {
	v.d.Helper()
	return v.vmi(`{.status.conditions[?(@.type=="LiveMigratable")].status}`)
}

// is waits until the VMI and the launcher pod that it was made with are in these phases.
func (v *lived) is(vmi, pod string) {
	v.d.Helper()
	node.Eventually(v.d, 2*soon, func() bool { return v.vmi("{.status.phase}") == vmi && v.pod("{.status.phase}") == pod },
		"%s is not %s with a pod that is %s: %s, %s", v.name, vmi, pod, later(func() string { return v.vmi("{.status}") }), later(func() string { return v.pod("{.status}") }))
}

// later is a text of a message that is read when the message is.
type later func() string

func (l later) String() string { return l() }

// ended asserts that the VM is told as ended: by its VMI and its pod, by kubectl vmgrace status and
// in these words. Then it can no longer be moved.
func (v *lived) ended(vmi, pod string, words ...string) {
	v.d.Helper()
	v.is(vmi, pod)
	if v.migratable() == "True" {
		v.d.Errorf("%s has ended and can be moved: %s", v.name, v.vmi("{.status.conditions}"))
	}
	if said, err := v.d.says("status", v.name); err != nil || !regexp.MustCompile(v.name+` .* `+vmi+` `).MatchString(said) {
		v.d.Errorf("kubectl vmgrace status of what is %s: %v\n%s", vmi, err, said)
	}
	v.told(words...)
	v.d.step("%s: %s", v.name, vmi)
}

// told waits until what kubectl describe shows of VMI and pod, Events and conditions, has each of
// these words.
func (v *lived) told(words ...string) {
	v.d.Helper()
	var said string
	for _, word := range words {
		node.Eventually(v.d, soon, func() bool { said = v.said(); return strings.Contains(said, word) }, "nothing says %q of %s:\n%s", word, v.name, later(func() string { return said }))
	}
}

// said returns the Events and the conditions of the VMI and its launcher pod.
func (v *lived) said() string {
	v.d.Helper()
	const events, conditions = `{range .items[*]}{.reason} {.message}{"\n"}{end}`, `{range .status.conditions[*]}{.type} {.status} {.reason} {.message}{"\n"}{end}`
	of := func(name string) string {
		return v.d.find(objects.Query{Kind: "event", Namespace: namespace, Fields: "involvedObject.name=" + name, Path: events})
	}
	return strings.Join([]string{of(v.name), of("virt-launcher-" + v.name), v.vmi(conditions), v.pod(conditions)}, "\n")
}

// unasked asserts that no shutdown of the VM has begun.
func (v *lived) unasked() {
	v.d.Helper()
	if said := v.said(); strings.Contains(said, "ShutdownStarted") {
		v.d.Errorf("%s was asked to shut down:\n%s", v.name, said)
	}
}

// press presses the power button, as a user does, not the agent. The guest goes off by itself.
func (v *lived) press() { v.user("shutdown", "system_powerdown") }

func (v *lived) reset() { v.user("reset", "system_reset") }

// user does to the guest what virsh or a monitor does.
func (v *lived) user(virsh, monitor string) {
	v.d.Helper()
	if v.p != nil {
		v.p.user(monitor)
	} else {
		v.l.Virsh(v.d, virsh)
	}
}

// crash kills QEMU.
func (v *lived) crash() {
	v.d.Helper()
	if v.l != nil {
		v.l.Node.Run(v.d, fmt.Sprintf("kill -9 %d", v.l.PID))
	} else if err := syscall.Kill(v.qemu(), syscall.SIGKILL); err != nil {
		v.d.Fatal(err)
	}
}

// qemu returns the pid of the QEMU in the VM's pod.
func (v *lived) qemu() int {
	v.d.Helper()
	return (&alone{w: v.d.world, name: v.name, uid: v.get("pod", v.p.pod(), "{.metadata.uid}")}).qemu()
}

// console returns what the guest has said where it was made.
func (v *lived) console() string {
	v.d.Helper()
	if v.p != nil {
		return v.p.console()
	}
	return v.l.Serial(v.d)
}

// boots waits until the guest has booted n times.
func (v *lived) boots(n int) {
	v.d.Helper()
	node.Eventually(v.d, 4*soon, func() bool { return strings.Count(v.console(), "vmgrace-guest: up") == n },
		"%s does not boot the %d. time: %s", v.name, n, later(v.console))
}

// gone waits until neither VMI nor pod is left.
func (v *lived) gone() {
	v.d.Helper()
	node.Eventually(v.d, 3*soon, func() bool { return v.vmi("{.metadata.name}") == "" && v.pod("{.metadata.name}") == "" },
		"something is left of %s: %s %s", v.name, later(func() string { return v.vmi("{.metadata}") }), later(func() string { return v.pod("{.metadata}{.status}") }))
	v.d.step("nothing is left of %s", v.name)
}

// moved waits until the VM runs on a node, as the same guest.
func (v *lived) moved(to *cluster.Node) {
	v.d.Helper()
	node.Eventually(v.d, 3*soon, func() bool {
		return v.vmi("{.status.phase} {.status.nodeName} {.status.evacuationNodeName}") == "Running "+to.Name
	}, "%s does not run on %s: %s", v.name, to.Name, later(func() string { return v.vmi("{.status}") }))
	if v.p != nil {
		v.p.moved(to)
	} else {
		v.l = v.l.moved(to)
	}
	v.unasked()
	v.d.step("%s is on %s", v.name, to.Name)
}

// launchers returns how many launcher pods of the VM have not ended.
func (v *lived) launchers() int {
	v.d.Helper()
	return len(strings.Fields(v.d.find(objects.Query{Kind: "pod", Namespace: namespace, Labels: "kubevirt.io/created-by=" + v.uid,
		Fields: "status.phase!=Succeeded,status.phase!=Failed", Path: "{.items[*].metadata.name}"})))
}

// migrations returns the phase of each migration of the VM.
func (v *lived) migrations() string {
	v.d.Helper()
	return v.d.find(objects.Query{Kind: "vmim", Namespace: namespace, Path: `{range .items[?(@.spec.vmiName=="` + v.name + `")]}{.status.phase} {.status.migrationState.failureReason};{end}`})
}

// sent waits until a migration of the VM is in the middle.
func (v *lived) sent() {
	v.d.Helper()
	node.Eventually(v.d, 3*soon, func() bool { return strings.Contains(v.migrations(), "Running ") }, "%s is not sent: %s", v.name, later(v.migrations))
}

// edit patches the VMI's spec.
func (v *lived) edit(field string, value any) {
	v.d.Helper()
	v.d.Kubectl(v.d, "patch", "vmi", v.name, "-n", namespace, "--type=merge", "-p", fmt.Sprintf(`{"spec":{%q:%#v}}`, field, value))
}

// withoutAgents runs do while no agent runs.
func (d *day) withoutAgents(do func()) {
	d.Helper()
	d.restore(d.applyAgents)
	d.Kubectl(d, "patch", "ds/node-agent", "-n", agents, "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/os":"none"}}}}}`)
	for _, n := range d.Nodes {
		node.Eventually(d, soon, func() bool { return d.agent(n) == "" }, "the agent of %s does not end", n.Name)
	}
	do()
	if err := d.applyAgents(d.Context()); err != nil {
		d.Fatal(err)
	}
}
